// The entry: finds the page of the address, signs in, and asks for the page's document once a second.

import { h, refill, setText } from "./dom.js";
import { ask, exchange, Refused, SignedOut, takeCode, Unreachable } from "./session.js";
import { Accelerators } from "./pages/accelerators.js";
import { Cost } from "./pages/cost.js";
import { FunctionPage } from "./pages/function.js";
import { Overview } from "./pages/overview.js";
import { Tenants } from "./pages/tenants.js";
import { Waiting } from "./pages/waiting.js";

const EVERY_MS = 1000;
const RETRY_MS = 2000;
const MAX_FAULTS = 8;
const PAGES = [
  [/^\/console\/?$/, Overview],
  [/^\/console\/functions\/([^/]+)\/?$/, FunctionPage],
  [/^\/console\/accelerators\/?$/, Accelerators],
  [/^\/console\/waiting\/?$/, Waiting],
  [/^\/console\/tenants\/?$/, Tenants],
  [/^\/console\/cost\/?$/, Cost],
];

const main = document.getElementById("main");
const faults = document.getElementById("faults");
const connection = document.getElementById("connection");

function find() {
  for (const [pattern, Page] of PAGES) {
    const match = pattern.exec(location.pathname);
    if (match !== null) return new Page(...match.slice(1).map(decodeURIComponent));
  }
  return null;
}

function markPlace() {
  for (const link of document.querySelectorAll("nav a")) {
    if (new URL(link.href).pathname === location.pathname.replace(/\/$/, "")) link.setAttribute("aria-current", "page");
  }
}

function showConnection(text, kind) {
  setText(connection, text);
  connection.className = `connection ${kind}`;
}

/** Shows the first faults, without figures that change: a screen reader speaks when the faults change, not each second. */
function showFaults(all) {
  const more = all.length - MAX_FAULTS;
  const texts = more > 0 ? [...all.slice(0, MAX_FAULTS), `and ${more} more`] : all;
  refill(faults, JSON.stringify(texts), () => texts.map((text) => h("p", { class: "fault" }, text)));
}

function message(title, ...content) {
  document.title = `${title} – Tidegate`;
  main.replaceChildren(h("h1", {}, title), ...content);
}

function askForCode(fault) {
  const field = h("input", { id: "code", name: "code", autocomplete: "off", spellcheck: "false", required: true });
  const answer = h("p", { class: "fault", role: "alert", hidden: fault === null }, fault ?? "");
  const form = h("form", {}, h("label", { for: "code" }, "Link or code"), field, h("button", { type: "submit" }, "Sign in"), answer);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const refused = await exchange(field.value);
    if (refused === null) location.reload();
    answer.hidden = false;
    setText(answer, refused ?? "");
  });
  showConnection("signed out", "bad");
  showFaults([]);
  message("Sign in", h("p", {}, "Run ", h("code", {}, "tidegate open"), " on the machine of the control process: it opens this console, or prints a link that works once."), form);
}

/** Waits, and returns at once when the page becomes visible again. */
function pause(milliseconds) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", visible);
      resolve();
    };
    const visible = () => document.visibilityState === "visible" && done();
    const timer = setTimeout(done, milliseconds);
    document.addEventListener("visibilitychange", visible);
  });
}

async function run(page) {
  let tag = null;
  let lostAt = null;
  main.replaceChildren(page.element);
  for (;;) {
    if (document.visibilityState === "hidden") {
      await pause(3600_000);
      continue;
    }
    try {
      const answer = await ask(page.path(), tag === null ? {} : { headers: { "if-none-match": tag } });
      if (answer.status !== 304) {
        page.update(await answer.json());
        tag = answer.headers.get("etag");
      } else {
        page.unchanged?.();
      }
      showConnection("live", "good");
      showFaults(page.faults());
      lostAt = null;
      await pause(EVERY_MS);
    } catch (error) {
      if (error instanceof SignedOut) return askForCode(null);
      if (error instanceof Refused && error.code === "function_not_found") {
        showConnection("live", "good");
        showFaults([]);
        return message("No such function", h("p", {}, error.message), h("p", {}, h("a", { href: "/console" }, "All functions")));
      }
      if (!(error instanceof Unreachable || error instanceof Refused)) throw error;
      lostAt ??= new Date();
      const lost = error instanceof Unreachable
        ? `Connection to the control process lost at ${lostAt.toLocaleTimeString([], { hour12: false })}; these figures are older. Trying again.`
        : `The control process refuses: ${error.message}`;
      showConnection("not connected", "bad");
      showFaults([lost]);
      await pause(RETRY_MS);
    }
  }
}

markPlace();
const refused = await takeCode();
const page = find();
if (page === null) {
  showConnection("", "");
  message("No such page", h("p", {}, h("a", { href: "/console" }, "All functions")));
} else if (refused !== null) {
  askForCode(refused);
} else {
  document.title = `${page.title} – Tidegate`;
  await run(page);
}
