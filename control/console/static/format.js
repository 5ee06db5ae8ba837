// Figures for people. An unknown value is a dash.

export const DASH = "–";

/** 1.8 ms, 231 ms, 2.31 s, 60 s, 4 min: as the command line writes durations. */
export function seconds(value) {
  if (value === null || value === undefined) return DASH;
  if (value < 0.0995) return `${+(value * 1e3).toFixed(1)} ms`;
  if (value < 0.9995) return `${(value * 1e3).toFixed(0)} ms`;
  if (value < 120) return `${+value.toPrecision(3)} s`;
  return value < 7200 ? `${(value / 60).toFixed(0)} min` : `${(value / 3600).toFixed(1)} h`;
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return DASH;
  return String(+Number(value).toPrecision(digits));
}

/** 1 replica, 2 replicas. */
export function count(value, word) {
  return `${value} ${word}${value === 1 ? "" : "s"}`;
}

export function rate(value) {
  return value === null || value === undefined ? DASH : value.toFixed(1);
}

export function percent(part, digits = 1) {
  return part === null || part === undefined ? DASH : `${(100 * part).toFixed(digits)} %`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  while (value >= 1024 && index < units.length - 1) {
    value /= 1024;
    index += 1;
  }
  return `${number(value, 3)} ${units[index]}`;
}

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour12: false });
}

export function since(at) {
  return seconds(Math.max(0, Date.now() / 1000 - at));
}

/** The latency target in words: "p98 ≤ 200 ms". */
export function target(sla) {
  if (sla.latency_s === null) return "no target";
  const token = sla.per_token_s === null ? "" : `, ${seconds(sla.per_token_s)} per token`;
  return `p${number(sla.percentile)} ≤ ${seconds(sla.latency_s)}${token}`;
}

const SLA_KINDS = { met: "good", missed: "bad", "no traffic": "idle", "no target": "idle" };
const STATE_KINDS = { ready: "good", asleep: "idle", starting: "busy", draining: "busy", "no-room": "bad", failed: "bad" };

export function slaCell(sla) {
  const share = sla.attained === null ? "" : ` ${percent(sla.attained)}`;
  return { text: sla.state + share, kind: SLA_KINDS[sla.state] ?? "idle", note: sla.state === "no target" ? "" : target(sla) };
}

export function stateCell(state) {
  return { text: state, kind: STATE_KINDS[state] ?? "idle" };
}
