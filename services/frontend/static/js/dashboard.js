/** The deployment: live as events, its last ten minutes from /dashboard/history. */

import { Chart } from "./chart.js";
import { $, make } from "./dom.js";
import { applyTheme } from "./theme.js";
import { bytes, count, milliseconds, nameOnHost, perSecond, percent, shortName } from "./units.js";

const KEPT_S = 600;
const SILENT_MS = 10_000; // without an event the deployment counts as away
const RETRY_MS = 3_000;

const PLACES = {
  arena: ["host", "host memory"],
  host: ["host", "host memory"],
  peer: ["peer", "another host"],
  disk: ["disk", "disk"],
  objects: ["objects", "object store"],
};
const REASONS = {
  reserved: "where its advisory prefetched",
  moved: "not there: it was busy",
  affinity: "where the session was",
  kv: "where its KV is",
  adapter: "where its adapter is",
  balance: "least load",
  replaced: "again, after a failure",
  migrated: "moved while it ran",
};

const charts = [
  new Chart("Time to first token", [
    { name: "ttft_p50", label: "median" }, { name: "ttft_p99", label: "99th percentile" },
  ], milliseconds),
  new Chart("Tokens per second", [
    { name: "generated_tokens", label: "generated" }, { name: "prompt_tokens", label: "prompts" },
  ], perSecond, 10),
  new Chart("Turns", [
    { name: "running", label: "running" }, { name: "waiting", label: "waiting" },
  ], count, 4),
  new Chart("Prompt tokens found in caches", [{ name: "cached_share", label: "cached" }], percent, 1),
];

let kept = []; // points of the history, and of views since
let stepS = 10;
let lastEventAtMs = 0;

function pointOf(view) {
  const { turns, rates, latency_ms: latency } = view;
  return {
    at: view.at,
    running: turns.running,
    waiting: turns.waiting,
    generated_tokens: rates.generated_tokens,
    prompt_tokens: rates.prompt_tokens,
    cached_share: view.cached_share,
    ttft_p50: latency.ttft.p50,
    ttft_p99: latency.ttft.p99,
  };
}

function showCharts(view) {
  const point = pointOf(view);
  kept = kept.filter(({ at }) => at >= point.at - KEPT_S && at < point.at);
  const points = [...kept, point];
  if (point.at - (kept.at(-1)?.at ?? 0) >= stepS) kept.push(point);
  for (const chart of charts) chart.show(points, point.at);
}

async function readHistory() {
  const answer = await fetch("/dashboard/history");
  if (!answer.ok) return;
  const { step_s: step, ...columns } = await answer.json();
  const names = Object.keys(columns);
  stepS = step;
  kept = columns.at.map((_, row) => Object.fromEntries(names.map((name) => [name, columns[name][row]])));
}

function figure(value, label, isBad = false) {
  const lines = [make("b", { textContent: value }), make("span", { textContent: label })];
  return make("div", { className: isBad ? "figure bad" : "figure" }, ...lines);
}

function showFigures(view) {
  const { turns, rates, latency_ms: latency, scaling } = view;
  const cached = view.cached_share;
  $("figures").replaceChildren(
    figure(count(turns.running), "turns running"),
    figure(count(turns.waiting), "turns waiting"),
    figure(count(turns.expected), "turns announced"),
    figure(perSecond(rates.requests), "replies"),
    figure(perSecond(rates.errors), "errors", rates.errors > 0),
    figure(milliseconds(latency.ttft.p50), "to first token, median"),
    figure(milliseconds(latency.inter_token.p50), "between tokens, median"),
    figure(perSecond(rates.generated_tokens), "tokens generated"),
    figure(cached === null ? "–" : percent(cached), "of prompt tokens cached"),
    figure(`+${scaling.add} −${scaling.remove}`, "workers to add, to remove"),
  );
}

/** A bar, and beside it what it says. */
function share(used, whole, text, place = "pool") {
  const filled = make("i");
  filled.style.width = `${Math.min(100, (100 * used) / Math.max(whole, 1))}%`;
  return make("span", {}, make("span", { className: `share at-${place}`, "aria-hidden": "true" }, filled), text);
}

function table(id, heads, rows) {
  const head = heads.map((text) => make("th", { scope: "col", textContent: text }));
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell))));
  $(id).replaceChildren(make("tr", {}, ...head), ...body);
}

const state = (text, isGood) => make("span", { className: isGood ? "ready" : "other", textContent: text });
const named = (name, shown) => make("span", { title: name, textContent: shown });

function showWorkers(view) {
  const order = (a, b) => a.localeCompare(b, "en", { numeric: true });
  const byName = (a, b) => order(a.host_id, b.host_id) || order(a.worker_id, b.worker_id);
  table("workers", ["worker", "host", "state", "models", "running", "waiting", "announced", "KV pages"],
    view.workers.toSorted(byName).map((worker) => {
      const used = worker.num_pages - worker.num_pages_free;
      return [
        named(worker.worker_id, nameOnHost(worker.worker_id, worker.host_id)),
        named(worker.host_id, shortName(worker.host_id)),
        state(worker.state, worker.state === "ready"),
        worker.models.join(", "), count(worker.num_running), count(worker.num_waiting),
        count(worker.num_reservations),
        share(used, worker.num_pages, `${count(used)} of ${count(worker.num_pages)}`),
      ];
    }));
}

function showHosts(view) {
  table("hosts", ["host", "kvstore", "memory", "disk", "object store", "pinned blocks"],
    view.hosts.map(({ host_id: id, has_kvstore: hasKvstore, arena, disk, objects }) => [
      named(id, shortName(id)),
      state(hasKvstore ? "ready" : "away", hasKvstore),
      share(arena.bytes_used, arena.bytes, `${bytes(arena.bytes_used)} of ${bytes(arena.bytes)}`, "host"),
      share(disk.bytes, disk.bytes_max, `${bytes(disk.bytes)} of ${bytes(disk.bytes_max)}`, "disk"),
      bytes(objects.bytes), count(arena.blocks_pinned),
    ]));
}

/** A list; its section is left out while there is nothing in it and it `isRare`. */
function pairs(id, rows, isRare = false) {
  const shown = rows.length ? rows : [["none in the last half minute", ""]];
  $(id).closest("section").hidden = isRare && rows.length === 0;
  $(id).replaceChildren(...shown.flatMap(([name, value]) => {
    const term = typeof name === "string" ? make("dt", { textContent: name }) : make("dt", {}, name);
    return [term, typeof value === "string" ? make("dd", { textContent: value }) : make("dd", {}, value)];
  }));
}

const rates = (values, shown = (name) => name) =>
  Object.entries(values).sort((a, b) => b[1] - a[1]).map(([name, value]) => [shown(name), perSecond(value)]);

function placeOf(name) {
  const [place, text] = PLACES[name] ?? ["pool", name];
  return make("span", { className: `place at-${place}`, textContent: text });
}

const outcome = (name) => name.replaceAll("_", ", ");

/** With its service: `kvstore box`, `tracker-0`, and `scheduler` of `scheduler-scheduler`. */
function processName({ service, name }) {
  if (name === `${service}-${service}`) return service;
  return name.startsWith(service) ? shortName(name) : `${service} ${shortName(name)}`;
}

function showLists(view) {
  const { advisories, adapters } = view;
  pairs("staged", [
    ...rates(view.staged_pages, placeOf).map(([name, value]) => [name, `${value.slice(0, -2)} pages/s`]),
    ...Object.entries(view.peer_bytes).map(([way, value]) => [`other hosts, ${way}`, `${bytes(value)}/s`]),
  ]);
  pairs("placements", rates(view.placements, (name) => named(name, REASONS[name] ?? name)));
  pairs("advisories", [
    ["live", count(advisories.live)],
    ["sessions in the stores", count(view.sessions)],
    ...rates(advisories.outcomes, outcome),
    ...rates(advisories.of_agents, (name) => `of agents: ${outcome(name)}`),
    ...advisories.rates.map((one) => [`${one.tenant}: used`, percent(one.hits)]),
    ...advisories.throttled.map((one) => [`${one.tenant}: throttled`, count(one.num_refused)]),
  ]);
  pairs("batches", view.batches.map((one) =>
    [one.model, `${perSecond(one.jobs_per_s)} in batches of ${count(one.mean_size)}`]), true);
  pairs("windows", view.windows.map((one) => {
    const opensInMs = Math.max(one.opens_in_ms, 0);
    const from = one.is_offered ? "wait for a worker, up" : `in ${count(opensInMs)}`;
    return [one.model, `${count(one.num_waiting)} jobs ${from} to ${count(one.closes_in_ms)} ms`];
  }), true);
  pairs("adapters", adapters.known === 0 && adapters.running.length === 0 ? [] : [
    ["known", count(adapters.known)],
    ["running", adapters.running.join(", ") || "none"],
    ["loading", adapters.waiting.join(", ") || "none"],
  ], true);
  pairs("services", view.services.map((one) => [
    named(one.name, processName(one)),
    state(one.state, one.state === "ready"),
  ]));
}

function show(view) {
  showFigures(view);
  showCharts(view);
  showWorkers(view);
  showHosts(view);
  showLists(view);
  const away = view.services.filter((one) => one.state !== "ready").length;
  const all = `${view.services.length} processes`;
  say(away ? `${away} of ${all} are not ready` : `${all} are ready`, away > 0);
}

function say(text, isBad) {
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").className = isBad ? "bad" : "good";
}

function watch() {
  const source = new EventSource("/v1/house/events"); // it connects again by itself
  source.onopen = () => readHistory().catch(() => {}); // the charts then begin with this page
  source.onmessage = (event) => {
    lastEventAtMs = Date.now();
    show(JSON.parse(event.data));
  };
  source.onerror = () => {
    say("the deployment does not answer", true);
    if (source.readyState === EventSource.CLOSED) setTimeout(watch, RETRY_MS);
  };
}

applyTheme();
$("charts").append(...charts.map(({ element }) => element));
setInterval(() => {
  if (lastEventAtMs && Date.now() - lastEventAtMs > SILENT_MS) say("the deployment does not answer", true);
}, 1_000);
watch();
