// Asking the gateway over HTTP, and saying what went wrong in sentences.

export class Refusal extends Error {
  constructor(problem) {
    super(sentences(problem));
    this.status = problem.status;
    this.reason = problem.reason ?? "";
  }
}

export function sentences(problem) {
  const said = [problem.detail || "The gateway gave no reason", problem.fix ? `What helps: ${problem.fix}` : ""];
  return said.filter(Boolean).map(sentence).join(" ");
}

function sentence(text) {
  const trimmed = text.trim();
  return trimmed[0].toUpperCase() + trimmed.slice(1) + (/[.!?…]$/.test(trimmed) ? "" : ".");
}

export async function ask(path, { body, query = {}, token = "", evidence = true } = {}) {
  const headers = {};
  if (token) headers.authorization = `Bearer ${token}`;
  if (!evidence) headers["x-blurfleet-evidence"] = "no";
  const words = new URLSearchParams(query).toString();
  let response;
  try {
    response = await fetch(words ? `${path}?${words}` : path, { method: body ? "POST" : "GET", body, headers });
  } catch {
    throw new Refusal({ status: 0, detail: "The gateway does not answer", fix: "see whether the node is up, and ask again" });
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({ detail: `The gateway answered ${response.status} and nothing else` }));
  throw new Refusal({ ...problem, status: response.status });
}

export function factsOf(headers) {
  const said = (name) => headers.get(`x-blurfleet-${name}`) ?? "";
  const stages = {};
  for (const [, name, ms] of (headers.get("server-timing") ?? "").matchAll(/([\w-]+);dur=([\d.]+)/g)) stages[name] = Number(ms);
  return {
    engine: said("engine"), precision: said("precision"), role: said("role"), epoch: said("epoch"), contract: said("contract"),
    trace: said("trace"), withheld: said("withheld"), simulated: said("simulated") === "true", stages,
  };
}
