// The deployment, live, from /v1/house/events.

const KEPT = 150; // views: five minutes
const SILENT_MS = 10_000; // without an event the deployment counts as away
const SVG = "http://www.w3.org/2000/svg";

const at = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const history = [];
let lastEventAt = 0;

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = count > 0 ? Math.min(Math.floor(Math.log2(count) / 10), units.length - 1) : 0;
  return `${number.format(count / 2 ** (10 * power))} ${units[power]}`;
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function figure(value, label) {
  const made = element("div", undefined, "figure");
  made.append(element("b", value), element("span", label));
  return made;
}

function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1000 ? `${number.format(value)} ms` : `${number.format(value / 1000)} s`;
}

function showFigures(view) {
  const { turns, rates, latency_ms: latency, scaling } = view;
  const cached = view.cached_share;
  at("figures").replaceChildren(
    figure(number.format(turns.running), "turns running"),
    figure(number.format(turns.waiting), "waiting"),
    figure(number.format(turns.expected), "expected"),
    figure(number.format(view.sessions), "sessions known"),
    figure(number.format(rates.requests), "replies a second"),
    figure(number.format(rates.generated_tokens), "tokens a second"),
    figure(milliseconds(latency.ttft.p50), "to the first token, median"),
    figure(milliseconds(latency.inter_token.p50), "between tokens, median"),
    figure(cached === null ? "–" : `${number.format(cached * 100)} %`, "of prompt blocks not computed"),
    figure(`+${scaling.add} −${scaling.remove}`, "workers advised"),
  );
}

function share(used, whole) {
  const made = document.createElement("meter");
  made.max = Math.max(whole, 1);
  made.value = used;
  made.textContent = `${used} of ${whole}`;
  made.setAttribute("aria-label", `${number.format(used)} of ${number.format(whole)}`);
  return made;
}

function table(id, heads, rows) {
  const head = element("tr");
  head.append(...heads.map((text) => {
    const cell = element("th", text);
    cell.scope = "col";
    return cell;
  }));
  const body = rows.map((cells) => {
    const row = element("tr");
    row.append(...cells.map((cell) => {
      const made = element("td");
      made.append(cell);
      return made;
    }));
    return row;
  });
  at(id).replaceChildren(head, ...body);
}

function showWorkers(view) {
  table("workers", ["worker", "state", "models", "running", "waiting", "expected", "KV pages"],
    view.workers.map((worker) => {
      const used = worker.num_pages - worker.num_pages_free;
      const pages = element("span", ` ${number.format(used)} of ${number.format(worker.num_pages)}`);
      pages.prepend(share(used, worker.num_pages));
      return [
        worker.worker_id, element("span", worker.state, worker.state === "ready" ? "ready" : "other"),
        worker.models.join(", "), String(worker.num_running), String(worker.num_waiting),
        String(worker.num_reservations), pages,
      ];
    }));
}

function showHosts(view) {
  table("hosts", ["host", "kvstore", "memory", "disk", "object store", "pinned blocks"],
    view.hosts.map((host) => {
      const { arena, disk, objects } = host;
      const memory = element("span", ` ${bytes(arena.bytes_used)} of ${bytes(arena.bytes)}`);
      memory.prepend(share(arena.bytes_used, arena.bytes));
      return [
        host.host_id,
        element("span", host.has_kvstore ? "answers" : "away", host.has_kvstore ? "ready" : "other"),
        memory, `${bytes(disk.bytes)} in ${number.format(disk.blocks)} blocks`,
        bytes(objects.bytes), number.format(arena.blocks_pinned),
      ];
    }));
}

function pairs(id, given) {
  const rows = given.length ? given : [["nothing lately", ""]];
  at(id).replaceChildren(...rows.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
}

const rate = (value) => `${number.format(value)} /s`;
const rates = (perSecond, named = (name) => name) =>
  Object.entries(perSecond).sort((a, b) => b[1] - a[1]).map(([name, value]) => [named(name), rate(value)]);

function showLists(view) {
  const { advisories, adapters } = view;
  pairs("advisories", [
    ["live", number.format(advisories.live)],
    ...rates(advisories.outcomes),
    ...rates(advisories.of_agents, (name) => `of agents: ${name}`),
    ...advisories.rates.map((one) => [`${one.tenant}: came true`, `${number.format(one.hits * 100)} %`]),
    ...advisories.throttled.map((one) => [`${one.tenant}: throttled`, number.format(one.num_refused)]),
  ]);
  pairs("staged", [
    ...rates(view.staged_pages, (name) => `pages: ${name}`),
    ...Object.entries(view.peer_bytes).map(([name, value]) => [`other hosts: ${name}`, `${bytes(value)}/s`]),
  ]);
  pairs("placements", rates(view.placements));
  pairs("batches", view.batches.map((one) =>
    [one.model, `${rate(one.jobs_per_s)} in batches of ${number.format(one.mean_size)}`]));
  pairs("windows", view.windows.map((one) => [one.model, `${number.format(one.num_waiting)} jobs wait, ` +
    (one.is_offered ? "for a worker" : `open in ${number.format(Math.max(one.opens_in_ms, 0))} ms`) +
    `, at the latest in ${number.format(one.closes_in_ms)} ms`]));
  pairs("adapters", [
    ["known", number.format(adapters.known)],
    ["running", adapters.running.join(", ") || "none"],
    ["on their way", adapters.waiting.join(", ") || "none"],
  ]);
  pairs("services", view.services.map((one) =>
    [one.name.startsWith(one.service) ? one.name : `${one.service} ${one.name}`, one.state]));
}

function line(values, top, className) {
  const points = values.map((value, index) =>
    value === null ? null : `${(100 * (KEPT - values.length + index)) / (KEPT - 1)},${100 - (95 * value) / top}`);
  const made = document.createElementNS(SVG, "polyline");
  made.setAttribute("points", points.filter((point) => point !== null).join(" "));
  made.setAttribute("class", className);
  return made;
}

function chart(id, first, second, written) {
  const svg = at(id);
  const top = Math.max(1e-9, ...first.filter((v) => v !== null), ...second.filter((v) => v !== null));
  const inner = document.createElementNS(SVG, "svg");
  inner.setAttribute("viewBox", "0 0 100 100");
  inner.setAttribute("preserveAspectRatio", "none");
  inner.append(line(second, top, "p99"), line(first, top, "p50"));
  const label = document.createElementNS(SVG, "text");
  label.setAttribute("x", "2");
  label.setAttribute("y", "12");
  label.textContent = top > 1e-6 ? written(top) : "";
  svg.replaceChildren(inner, label);
}

function show(view) {
  history.push(view);
  if (history.length > KEPT) history.shift();
  showFigures(view);
  showWorkers(view);
  showHosts(view);
  showLists(view);
  const ttft = (name) => history.map((each) => each.latency_ms.ttft[name]);
  chart("times", ttft("p50"), ttft("p99"), milliseconds);
  chart("tokens", history.map((each) => each.rates.generated_tokens),
    history.map((each) => each.rates.prompt_tokens), (top) => `${number.format(top)} /s`);
  const away = view.services.filter((one) => one.state !== "ready").length;
  say(away ? `${away} of ${view.services.length} processes are not ready` : `${view.services.length} processes are ready`, away > 0);
}

function say(text, isBad) {
  if (at("state").textContent !== text) at("state").textContent = text;
  at("state").classList.toggle("bad", isBad);
}

function watch() {
  const source = new EventSource("/v1/house/events"); // it connects again by itself
  source.onmessage = (event) => {
    lastEventAt = Date.now();
    show(JSON.parse(event.data));
  };
  source.onerror = () => {
    say("the deployment does not answer", true);
    if (source.readyState === EventSource.CLOSED) setTimeout(watch, 3000);
  };
}

setInterval(() => {
  if (lastEventAt && Date.now() - lastEventAt > SILENT_MS) say("the deployment does not answer", true);
}, 1000);
watch();
