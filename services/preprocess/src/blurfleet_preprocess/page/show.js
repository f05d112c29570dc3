// What the page shows: pictures, facts, problems.

const at = (id) => document.getElementById(id);
const urls = new Map();

export function picture(id, blob) {
  const before = urls.get(id);
  const image = at(id);
  const url = URL.createObjectURL(blob);
  urls.set(id, url);
  image.src = url;
  image.hidden = false;
  if (before) image.addEventListener("load", () => URL.revokeObjectURL(before), { once: true });
  if (id === "result") {
    image.classList.toggle("clear", blob.type === "image/webp");
    const kind = blob.type.split("/")[1];
    Object.assign(at("save"), { href: url, download: `blurred.${kind === "jpeg" ? "jpg" : kind}`, hidden: false });
  }
}

export function noPictures(...ids) {
  for (const id of ids) { at(id).hidden = true; at(id).removeAttribute("src"); }
  if (ids.includes("result")) at("save").hidden = true;
}

export function facts(by) {
  for (const name of ["engine", "precision", "role", "epoch", "contract", "trace"]) at(`fact-${name}`).textContent = by[name];
  const stages = Object.entries(by.stages).map(([name, ms]) => `${name} ${ms.toFixed(ms < 10 ? 1 : 0)}`);
  at("fact-time").textContent = stages.length ? `${stages.join(" · ")} ms` : "–";
  at("simulated").hidden = !by.simulated;
  at("withheld").hidden = !by.withheld;
  at("withheld").textContent = by.withheld ? `The served engine's own matte was withheld (${by.withheld}); the fallback answered.` : "";
}

export function flicker(sent, engine) {
  at("flicker-row").hidden = sent === undefined;
  if (sent !== undefined) at("fact-flicker").textContent = `${sent.toFixed(4)} sent · ${engine.toFixed(4)} engine`;
}

export function problem(refusal) {
  at("problem").hidden = !refusal;
  at("problem").textContent = refusal ? refusal.message : "";
  if (refusal?.status === 401) at("door").hidden = false;
}

export function said(text) {
  at("said").textContent = text;
}
