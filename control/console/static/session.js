// The session of this browser: taken from a link, kept for this origin (scheme, host and port), sent as a header.
// It is no cookie: a cookie would also be sent to the functions behind the gateway, on another port of the same host.

const KEY = "tidegate-console-session";

export class SignedOut extends Error {}
export class Unreachable extends Error {}
export class Refused extends Error {
  constructor(message, code) {
    super(message);
    this.code = code;
  }
}

/** Takes a code from the address, if it has one, and exchanges it for a session. Returns why that failed, or null. */
export async function takeCode() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (code === null) return null;
  history.replaceState(null, "", location.pathname + location.search);
  return exchange(code);
}

/** Exchanges a code (or a whole link) for a session. Returns why that failed, or null. */
export async function exchange(text) {
  const code = text.includes("#code=") ? text.slice(text.indexOf("#code=") + 6).trim() : text.trim();
  let answer;
  try {
    answer = await fetch("/console/session", { method: "POST", body: JSON.stringify({ code }) });
  } catch {
    return "The control process does not answer.";
  }
  const body = await answer.json();
  if (!answer.ok) return body.error.message;
  localStorage.setItem(KEY, body.session);
  return null;
}

export function signOut() {
  localStorage.removeItem(KEY);
}

/** Sends a request with the session. Throws SignedOut, Unreachable, or Refused with the server's reason. */
export async function ask(path, options = {}) {
  const session = localStorage.getItem(KEY);
  if (session === null) throw new SignedOut("no session");
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: { ...options.headers, authorization: `Bearer ${session}` } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable("The control process does not answer.");
  }
  if (answer.status === 401) {
    signOut();
    throw new SignedOut("the session has ended");
  }
  if (answer.ok || answer.status === 304) return answer;
  let reason = { message: `status ${answer.status}`, code: "" };
  try {
    reason = (await answer.json()).error;
  } catch {
    // An answer without a body: its status is all there is.
  }
  throw new Refused(reason.message, reason.code);
}
