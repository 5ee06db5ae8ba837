// The last lines of a function's model servers, followed while the section is open.

import { h, setText } from "./dom.js";
import { ask } from "./session.js";

const KEPT = 500;
const TAIL = 50;

export class Logs {
  constructor(name) {
    this.name = name;
    this.text = h("pre", { class: "log", tabindex: "0", role: "log", "aria-label": "Output of the model servers", "aria-live": "off" });
    this.state = h("p", { class: "quiet small", role: "status" });
    this.source = h("select", { id: "source", onchange: () => this.follow() },
      h("option", { value: "server" }, "model servers"), h("option", { value: "proxy" }, "queue proxies"), h("option", { value: "all" }, "both"));
    this.element = h("details", { ontoggle: () => this.follow() }, h("summary", {}, "Follow the output"),
      h("p", { class: "tools" }, h("label", { for: "source" }, "Output of"), this.source), this.text, this.state);
  }

  async follow() {
    this.stop?.abort();
    if (!this.element.open) return;
    const stop = this.stop = new AbortController();
    this.text.replaceChildren();
    setText(this.state, "following");
    try {
      const path = `/api/v1/functions/${encodeURIComponent(this.name)}/logs?follow=true&tail=${TAIL}&source=${this.source.value}`;
      const answer = await ask(path, { signal: stop.signal });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        this.add(lines.filter((line) => line !== "").map((line) => JSON.parse(line)));
      }
      setText(this.state, "The stream has ended; open the section again to go on.");
    } catch (error) {
      if (!stop.signal.aborted) setText(this.state, `The stream broke: ${error.message} Open the section again to go on.`);
    }
  }

  add(records) {
    const atEnd = this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < 40;
    for (const { replica, line } of records) this.text.append(h("div", {}, `${replica} | ${line}`));
    while (this.text.childElementCount > KEPT) this.text.firstElementChild.remove();
    if (atEnd) this.text.scrollTop = this.text.scrollHeight;
  }
}
