// Revisions with their part of the traffic, the rollout under way, and its buttons.

import { h, refill, setText, Table } from "./dom.js";
import { clock, number, seconds } from "./format.js";
import { ask } from "./session.js";

const WORDS = {
  promote: "Promote: all traffic to the new revision",
  pause: "Pause",
  resume: "Resume",
  abort: "Abort: all traffic back to the old revision",
};

export class Rollouts {
  constructor(name) {
    this.name = name;
    this.parts = new Table("Revisions", [
      { title: "Revision", cell: (row) => row.id },
      { title: "Role", cell: (row) => row.role },
      { title: "Traffic", number: true, cell: (row) => `${number(row.percent)} %` },
      { title: "Ready", number: true, cell: (row) => row.ready },
      { title: "Wanted", number: true, cell: (row) => row.desired ?? "hold" },
      { title: "Tags", wide: true, cell: (row) => row.tags.join(", ") || "–" },
      { title: "Policy", wide: true, cell: (row) => row.policy + (row.is_dry_run ? " (dry run)" : "") },
      { title: "Deployed", wide: true, cell: (row) => clock(row.created_at) },
    ], "No revision runs.");
    this.state = h("div");
    this.actions = h("p", { class: "tools" });
    this.result = h("p", { role: "status" });
    this.dialog = h("dialog", { "aria-labelledby": "question" });
    this.element = h("div", {}, this.parts.element, this.state, this.actions, this.result, this.dialog);
  }

  update({ function: view, rollout, buttons }) {
    this.parts.update(view.revisions, (row) => row.id);
    refill(this.state, JSON.stringify(rollout), () => rollout === null
      ? h("p", { class: "quiet" }, "No rollout step by step so far.") : described(rollout));
    refill(this.actions, JSON.stringify(buttons), () => [
      ...buttons.actions.map((action) => this.button(WORDS[action], `${WORDS[action].split(":")[0]} the rollout of ${rollout.candidate}?`, "rollout", { action })),
      ...buttons.rollback_to.map((revision) => this.button(`Roll back to ${revision}`, `Give all traffic of ${this.name} to ${revision}?`, "rollback", { to: revision })),
    ]);
  }

  button(words, question, path, body) {
    return h("button", { type: "button", onclick: () => this.confirm(words, question, path, body) }, words);
  }

  confirm(words, question, path, body) {
    const close = () => this.dialog.close();
    this.dialog.replaceChildren(h("p", { id: "question" }, question), h("p", { class: "tools" },
      h("button", { type: "button", class: "strong", onclick: () => { close(); this.send(words, path, body); } }, "Yes"),
      h("button", { type: "button", autofocus: true, onclick: close }, "No")));
    this.dialog.showModal();
  }

  async send(words, path, body) {
    setText(this.result, `${words.split(":")[0]}: sent.`);
    try {
      await ask(`/api/v1/functions/${encodeURIComponent(this.name)}/${path}`,
        { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } });
      setText(this.result, `${words.split(":")[0]}: done.`);
    } catch (error) {
      setText(this.result, `${words.split(":")[0]}: refused. ${error.message}`);
    }
  }
}

function described(rollout) {
  const step = rollout.step ? `, step ${rollout.step} of ${rollout.steps.length}` : "";
  const left = rollout.window_left_s === null ? "" : `, judged in ${seconds(Math.round(rollout.window_left_s))}`;
  const figures = [["new", rollout.new], ["old", rollout.old]].filter(([, window]) => window !== null)
    .map(([name, window]) => `${name}: ${window.bad} of ${window.requests} requests bad (${window.failed} failed, ${window.late} late)`);
  return [
    h("h3", {}, `${rollout.strategy} rollout of ${rollout.candidate}: ${rollout.phase}`),
    h("p", {}, `${number(rollout.percent)} % of the traffic${step}${left}. ${rollout.verdict}`),
    ...figures.map((text) => h("p", { class: "quiet" }, text)),
    h("ol", { class: "events" }, ...rollout.events.map((event) => h("li", {}, `${clock(event.at)} ${event.code} ${event.detail}`))),
  ];
}
