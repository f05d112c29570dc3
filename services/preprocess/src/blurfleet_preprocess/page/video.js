// The camera over one WebSocket: the newest frame goes out when the last one is on its way, answers come as they come.

import { ask, Refusal } from "./ask.js";

const SUBPROTOCOL = "blurfleet.stream.v1";
const AT_MOST_AHEAD = 2;
const FRAME_MS = 66;

export class Video {
  constructor({ hello, token, answered, ended }) {
    this.answered = answered;
    this.ended = ended;
    this.hello = hello;
    this.sent = 0;
    this.settled = 0;
    this.frames = new Map();
    this.problem = null;
    this.token = token;
    this.element = document.createElement("video");
    this.element.muted = true;
    this.element.playsInline = true;
    this.canvas = document.createElement("canvas");
  }

  async start() {
    const camera = { video: { width: { ideal: 960 }, height: { ideal: 540 } }, audio: false };
    let media;
    try {
      media = await navigator.mediaDevices.getUserMedia(camera);
    } catch (error) {
      const why = error?.name === "NotAllowedError" ? "The browser does not let this page use a camera" : "There is no camera to use";
      throw new Refusal({ status: 0, detail: why, fix: "allow it beside the address, or drop a picture" });
    }
    if (this.stopped) return media.getTracks().forEach((track) => track.stop()); // while the browser asked its reader
    this.media = media;
    this.element.srcObject = media;
    await this.element.play();
    if (!this.stopped) this.open();
  }

  open() {
    const offered = this.token ? [SUBPROTOCOL, `bearer.${this.token}`] : [SUBPROTOCOL];
    const address = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/stream`;
    try {
      this.socket = new WebSocket(address, offered);
    } catch {
      throw new Refusal({ status: 401, detail: "This token has characters that a stream cannot carry", fix: "use one of letters and digits" });
    }
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => { this.opened = true; this.socket.send(JSON.stringify(this.hello)); };
    this.socket.onmessage = (message) => this.heard(message.data);
    this.socket.onclose = () => this.closed();
  }

  heard(data) {
    if (typeof data !== "string") return this.take(new Uint8Array(data));
    const said = JSON.parse(data);
    if (said.kind === "ready" && !this.stopped) this.timer = setInterval(() => this.send(), FRAME_MS);
    if (said.kind === "refused") { this.forget(said.id); this.answered({ refusal: new Refusal(said.problem) }); }
    if (said.kind === "summary") { this.summary = said; this.problem = said.problem ?? null; }
  }

  take(bytes) {
    const line = bytes.indexOf(10);
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(0, line)));
    const blobs = {};
    let at = line + 1;
    for (const part of header.parts) {
      blobs[part.output] = new Blob([bytes.subarray(at, at + part.bytes)], { type: part.mediaType });
      at += part.bytes;
    }
    const original = this.frames.get(header.id);
    this.forget(header.id);
    this.answered({ header, original, matte: blobs.matte, result: blobs.blur });
  }

  forget(id) {
    this.settled = id;
    for (const known of this.frames.keys()) if (known <= id) this.frames.delete(known);
  }

  send() {
    const { videoWidth: width, videoHeight: height } = this.element;
    if (!width || this.busy || this.socket.bufferedAmount || this.sent - this.settled >= AT_MOST_AHEAD) return;
    this.busy = true;
    Object.assign(this.canvas, { width, height });
    this.canvas.getContext("2d").drawImage(this.element, 0, 0);
    this.canvas.toBlob((blob) => {
      this.busy = false;
      if (!blob || this.stopped || this.socket.readyState !== WebSocket.OPEN) return;
      this.sent += 1;
      this.frames.set(this.sent, blob);
      this.socket.send(blob);
    }, "image/jpeg", 0.9);
  }

  stop() {
    if (this.stopped) return;
    this.stopped = true;
    clearInterval(this.timer);
    this.media?.getTracks().forEach((track) => track.stop());
    if (this.opened && this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ kind: "end" }));
    else this.socket?.close();
  }

  async closed() {
    const asked = this.stopped;
    this.stop();
    let refusal = null;
    if (this.problem) refusal = new Refusal(this.problem);
    else if (!asked) refusal = this.opened ? new Refusal({ status: 0, detail: "The stream broke off", fix: "use the camera again" }) : await this.unopened();
    this.ended({ refusal, summary: this.summary });
  }

  // A browser is not told why a stream was not opened. What the gateway says to another request with the same token may be why.
  async unopened() {
    try {
      await ask("/v1/contract", { token: this.token });
    } catch (refusal) {
      return refusal;
    }
    return new Refusal({ status: 0, detail: "The stream was not opened", fix: "use the camera again" });
  }
}
