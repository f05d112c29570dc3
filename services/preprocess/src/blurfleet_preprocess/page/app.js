// Wires the page: a picture or the camera in, options, and what came back.

import { ask, factsOf, Refusal } from "./ask.js";
import * as show from "./show.js";
import { Video } from "./video.js";

const at = (id) => document.getElementById(id);
const KINDS = ["image/jpeg", "image/png", "image/webp"];
let photo = null;
let video = null;
let turn = 0;

function look() {
  const background = at("background").value;
  const asked = { background };
  if (background === "color") asked.color = at("color").value.slice(1);
  if (background !== "blur") return asked;
  Object.assign(asked, { style: at("style").value, mode: at("mode").value });
  if (!at("auto").checked) asked.radius = at("radius").value;
  if (asked.mode === "depth" && at("focus").value !== "1") asked.focus = at("focus").value;
  return asked;
}

const format = () => (at("background").value === "transparent" ? "webp" : "jpeg");
const terms = () => ({ token: at("token").value, evidence: !at("private").checked });

async function askPicture() {
  if (!photo) return;
  const mine = ++turn;
  show.problem(null);
  show.said("Asking…");
  try {
    const began = performance.now();
    const matte = await ask("/v1/matte", { body: photo, query: { format: "png" }, ...terms() });
    const result = await ask("/v1/blur", { body: photo, query: { ...look(), format: format() }, ...terms() });
    const [matteBlob, resultBlob] = await Promise.all([matte.blob(), result.blob()]);
    if (mine !== turn) return;
    const by = factsOf(result.headers);
    show.picture("matte", matteBlob);
    show.picture("result", resultBlob);
    show.facts(by);
    show.flicker();
    const swapped = factsOf(matte.headers).epoch === by.epoch ? "" : " The node swapped engines between matte and result.";
    show.said(`Answered in ${Math.round(performance.now() - began)} ms, matte and result together.${swapped}`);
    at("door").hidden = true;
  } catch (refusal) {
    if (mine !== turn) return;
    show.noPictures("matte", "result");
    show.problem(refusal instanceof Refusal ? refusal : new Refusal({ detail: String(refusal) }));
    show.said("Not answered.");
  }
}

function take(file) {
  if (!file) return;
  stopCamera();
  photo = file;
  show.noPictures("original", "matte", "result");
  if (KINDS.includes(file.type)) show.picture("original", file);
  askPicture();
}

async function startCamera() {
  const mine = ++turn;
  photo = null;
  show.problem(null);
  show.said("Opening the camera…");
  let frames = 0;
  const hello = {
    kind: "hello", output: "both", format: format(), smoothing: Number(at("smoothing").value), options: look(),
    evidence: terms().evidence,
  };
  const own = new Video({
    hello, token: terms().token,
    answered: ({ refusal, header, original, matte, result }) => {
      if (mine !== turn) return;
      show.problem(refusal ?? null);
      if (!header) return;
      frames += 1;
      if (original) show.picture("original", original);
      show.picture("matte", matte);
      show.picture("result", result);
      show.facts({ ...header, withheld: header.withheld ?? "", epoch: String(header.epoch) });
      show.flicker(header.flicker, header.engineFlicker);
      if (frames === 1 && video === own) show.said("The camera is on; every frame is answered or replaced by a newer one.");
    },
    ended: ({ refusal, summary }) => {
      if (mine !== turn) return;
      show.problem(refusal);
      show.said(summary ? `${summary.answered} of ${summary.received} frames answered, ${summary.dropped} replaced by newer ones.` : "The camera is off.");
      if (video === own) cameraIs(null);
    },
  });
  cameraIs(own);
  try {
    await own.start();
  } catch (refusal) {
    if (video !== own) return; // stopped meanwhile: no news to whoever stopped it
    stopCamera();
    show.problem(refusal);
    show.said("Not answered.");
  }
}

function cameraIs(used) {
  video = used;
  at("camera").setAttribute("aria-pressed", String(Boolean(used)));
  at("camera").textContent = used ? "Stop the camera" : "Use the camera";
}

// What the camera was asked to send is over at once, also while the browser still asks whether the page may use it.
function stopCamera() {
  if (!video) return;
  video.stop();
  cameraIs(null);
  show.said("The camera is off.");
}

async function restartCamera() {
  turn += 1; // what the old stream still says is not for this page
  stopCamera();
  await startCamera();
}

function settled() {
  const blurs = at("background").value === "blur";
  const shown = { blur: blurs, color: at("background").value === "color", depth: blurs && at("mode").value === "depth" };
  for (const label of document.querySelectorAll("[data-for]")) label.classList.toggle("off", !shown[label.dataset.for]);
  at("radius").disabled = at("auto").checked;
  at("radius-said").textContent = at("auto").checked ? "auto" : `${at("radius").value} pixels`;
  at("focus-said").textContent = at("focus").value === "1" ? "the nearest" : at("focus").value;
  at("smoothing-said").textContent = at("smoothing").value === "0" ? "off" : at("smoothing").value;
}

let waiting = 0;
function changed() {
  settled();
  clearTimeout(waiting);
  waiting = setTimeout(() => (video ? restartCamera() : askPicture()), 250);
}

async function introduce() {
  try {
    const said = await (await ask("/readyz")).json();
    at("node").textContent = `Ready: ${said.precision} serves as ${said.role}, epoch ${said.epoch}`;
    at("simulated").hidden = !said.simulated;
  } catch (refusal) {
    at("node").textContent = `Not ready: ${refusal.message}`;
  }
}

const drop = at("drop");
for (const name of ["dragover", "dragenter"]) addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
for (const name of ["dragleave", "drop"]) addEventListener(name, () => drop.classList.remove("over"));
addEventListener("drop", (event) => { event.preventDefault(); take(event.dataTransfer.files[0]); });
addEventListener("paste", (event) => take(event.clipboardData.files[0]));
at("file").addEventListener("change", (event) => { take(event.target.files[0]); event.target.value = ""; });
at("camera").addEventListener("click", () => (video ? stopCamera() : startCamera()));
at("options").addEventListener("input", (event) => { if (event.target.id !== "token") changed(); });
at("options").addEventListener("submit", (event) => { event.preventDefault(); introduce(); askPicture(); });
settled();
introduce();
