// The page of `pydra dev --web`. The server pushes views of the node; each is drawn as a whole, and what differs from
// the document is changed there. Text from the node becomes text nodes only, never markup.

const state = {
  live: false,
  title: "",
  view: null, // as pydra_dev/page/operations.py has it; null while the node is being started
  entries: [],
  problem: "", // what was refused last
  selection: null, // {kind: "claim", key: [namespace, name]} or {kind: "device", key: [driver, pool, name]}
  detail: null, // the server's answer about the selection
};

const FEW = 12; // more devices than these are folded

// ---- Drawing ----

/** An element. Attributes that are null or false are left out; children are elements, texts, or lists of them. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter((child) => child !== null));
  return element;
}

/** Make `old` like `fresh` and keep what the reader has done there: focus, selected text, what is unfolded. */
function morph(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && name !== "open") old.setAttribute(name, value);
  }
  morphChildren(old, [...fresh.childNodes]);
}

function morphChildren(parent, fresh) {
  const keyed = new Map([...parent.children].filter((child) => child.dataset.key).map((child) => [child.dataset.key, child]));
  let next = parent.firstChild;
  for (const child of fresh) {
    const old = keyed.get(child.dataset?.key) ?? next;
    if (!old || old.nodeName !== child.nodeName || old.dataset?.key !== child.dataset?.key) {
      parent.insertBefore(child, next);
      continue;
    }
    if (old !== next) parent.insertBefore(old, next);
    next = old.nextSibling;
    if (old.nodeType === Node.ELEMENT_NODE) morph(old, child);
    else if (old.data !== child.data) old.data = child.data;
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

const show = (id, ...children) => morphChildren(document.getElementById(id), [...h("div", {}, ...children).childNodes]);

function render() {
  const { view } = state;
  const connection = document.getElementById("connection");
  connection.dataset.state = state.live ? (view ? "live" : "waiting") : "lost";
  show("connection", state.live ? (view ? "live" : "the node is being started") : "connection lost, trying again");
  show("title", state.title);
  show("processes", view ? drawProcesses(view) : "");
  show("problem", [view?.failure, state.problem].filter(Boolean).map((text) => h("p", {}, text)));
  show(
    "controls",
    button("Start another pod", "start-pod", null, { disabled: !state.live || !view?.pods }),
    button("Crash the backend", "crash-backend", null, { class: "danger", disabled: !state.live || !view?.backends.length }),
  );
  show("pools", (view?.pools ?? []).map(drawPool), view && !view.pools.length ? h("p", {}, "No device is published.") : null);
  show("claims", view?.claims.length ? drawClaims(view.claims) : h("p", {}, "There is no claim."));
  show("inspector", drawInspector());
  show("log", state.entries.map(drawEntry).reverse());
}

const button = (label, operation, argument, attributes = {}) =>
  h("button", { type: "button", "data-operation": operation, "data-argument": JSON.stringify(argument), ...attributes }, label);

function drawProcesses({ agent, backends }) {
  const backend = backends.length ? `backend process ${backends.join(", ")}` : "backend: no process";
  return h("span", { "data-state": agent && backends.length ? "up" : "down" }, agent ? `agent ${agent}, ${backend}` : "the agent has ended");
}

const hash = (kind, key) => `#${[kind, ...key].map(encodeURIComponent).join("/")}`;

const link = (kind, key, attributes = {}, ...children) =>
  h("a", { href: hash(kind, key), "aria-current": location.hash === hash(kind, key) ? "true" : null, ...attributes }, ...children);

const deviceLink = (key) => link("device", key, {}, key[2]);

function drawPool(pool) {
  const count = pool.groups.reduce((sum, group) => sum + group.devices.length, 0);
  return h(
    "section",
    { "data-key": `${pool.driver}/${pool.name}`, "aria-label": `pool ${pool.name} of ${pool.driver}` },
    h("h3", {}, pool.driver, h("span", { class: "muted" }, ` pool ${pool.name}, ${count} devices`)),
    pool.problem ? h("p", { class: "bad" }, `Nothing can be allocated: the pool ${pool.problem}`) : null,
    pool.groups.map((group) => drawGroup(group, count > 64)),
  );
}

function drawGroup(group, fold) {
  const blocked = group.devices.filter((device) => device.use === "blocked" && !device.broken);
  const folds = blocked.length > FEW; // one whole device in use blocks all of its partitions
  const drawTiles = (devices) => h("ul", { class: "tiles" }, devices.map(drawTile));
  const tiles = [
    drawTiles(folds ? group.devices.filter((device) => !blocked.includes(device)) : group.devices),
    folds ? h("details", { "data-key": "blocked", class: "blocked" }, h("summary", {}, `${blocked.length} blocked`), drawTiles(blocked)) : null,
  ];
  if (!group.name) return h("div", { "data-key": "" }, tiles);
  const used = group.devices.filter((device) => device.claims.length || device.broken);
  const slots = group.counters.filter((counter) => counter.total === "1");
  const amounts = group.counters.filter((counter) => counter.total !== "1");
  return h(
    "details",
    { "data-key": group.name, class: "group", open: !fold || used.length > 0 },
    h("summary", {}, h("b", {}, group.name), h("span", { class: "muted" }, ` ${summarize(group.devices)}`)),
    h(
      "ul",
      { class: "counters", "aria-label": `counters of ${group.name}` },
      amounts.map((counter) =>
        h(
          "li",
          { "data-key": counter.name },
          h("span", {}, counter.name),
          h("meter", { value: counter.part, "aria-label": `${counter.name} in use` }),
          h("span", { class: "muted" }, `${counter.used} of ${counter.total}`),
        ),
      ),
    ),
    h(
      "ul",
      { class: "slots", "aria-label": `slots of ${group.name}` },
      slots.map((counter) =>
        h("li", { "data-key": counter.name, "data-used": counter.part > 0, title: `${counter.used} of 1` }, counter.name, hidden(counter.part > 0 ? " in use" : " free")),
      ),
    ),
    tiles,
  );
}

const hidden = (text) => h("span", { class: "hidden" }, text);

/** `26 devices: 1 held, 25 blocked` */
function summarize(devices) {
  const counts = new Map();
  for (const device of devices) counts.set(describe(device), (counts.get(describe(device)) ?? 0) + 1);
  return `${devices.length} devices: ${[...counts].map(([word, count]) => `${count} ${word}`).join(", ")}`;
}

const describe = (device) => (device.broken ? `${device.use === "free" ? "" : `${device.use}, `}broken` : device.use);

function drawTile(device) {
  const verdict = judge(device);
  const claims = device.claims.map((name) => name.split("/")[1]).join(", ");
  const why = device.broken ? [...device.taints, device.health === "Healthy" ? "" : device.health] : claims || device.obstacle ? [] : device.taints;
  const own = [claims || device.obstacle, ...why].filter(Boolean).join(", ");
  const text = !verdict ? own : verdict.kind === "refused" && claims ? `${verdict.text}: ${claims}` : verdict.text;
  return h(
    "li",
    { "data-key": device.key[2] },
    link(
      "device",
      device.key,
      { class: "tile", "data-use": device.use, "data-broken": device.broken, "data-verdict": verdict?.kind ?? null, title: text || null },
      h("b", {}, device.key[2]),
      " ",
      h("span", { class: "state" }, describe(device)),
      " ",
      h("small", {}, text),
    ),
  );
}

/** What the claim that is looked at has with a device: it has it, or why it does not. Null: no claim is looked at. */
function judge(device) {
  if (state.selection?.kind !== "claim" || !state.detail) return null;
  const { results, refusals } = state.detail;
  if (!results) return null;
  const has = results.filter(([, key]) => isSame(key, device.key)).map(([request]) => request);
  if (has.length) return { kind: "picked", text: `this claim has it, for ${has.join(", ")}` };
  const against = refusals.filter((refusal) => refusal.devices.some((key) => isSame(key, device.key)));
  const several = new Set(refusals.map(({ request }) => request)).size > 1;
  return { kind: "refused", text: against.map(({ request, reason }) => (several ? `${request}: ${reason}` : reason)).join("; ") };
}

const isSame = (one, other) => one.length === other.length && one.every((part, index) => part === other[index]);

function drawClaims(claims) {
  const rows = claims.map((claim) =>
    h(
      "tr",
      { "data-key": `${claim.namespace}/${claim.name}`, "data-failed": claim.failed },
      h("th", { scope: "row" }, link("claim", [claim.namespace, claim.name], {}, claim.name)),
      h("td", { class: claim.state === "pending" ? "pending" : null }, claim.state.replaceAll(",", ", ")),
      h("td", { class: "devices" }, claim.devices.length ? claim.devices.map((key) => h("div", {}, deviceLink(key))) : "none"),
      h("td", {}, claim.pods.map(drawPod)),
    ),
  );
  const head = ["Claim", "State", "Devices", "Pods"].map((name) => h("th", { scope: "col" }, name));
  return h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
}

function drawPod(pod) {
  return h(
    "div",
    { class: "pod", "data-key": pod.name },
    h("span", {}, pod.name, h("span", { class: pod.status === "Pending" ? "pending" : "muted" }, ` ${pod.status}`)),
    button("Delete", "delete-pod", [pod.namespace, pod.name], { "aria-label": `Delete pod ${pod.name}`, disabled: !state.live }),
  );
}

function drawInspector() {
  const { selection, detail } = state;
  if (!selection) {
    return [
      h("h2", { id: "inspector-heading" }, "Why?"),
      h("p", {}, "Select a claim to see why it has its devices and no others, or a device to see what it is and to break it."),
    ];
  }
  const heading = h("h2", { id: "inspector-heading" }, `${selection.kind === "claim" ? "Claim" : "Device"} ${selection.key.at(-1)}`);
  const body = !detail ? [h("p", {}, "asking")] : detail.error ? [h("p", {}, detail.error)] : selection.kind === "claim" ? drawClaim(detail) : drawDevice(detail);
  return [heading, h("div", { "data-key": location.hash }, body)];
}

const drawKeys = (keys) => h("p", { class: "keys" }, keys.map(deviceLink));

function drawRefusal({ request, reason, devices }) {
  const text = h("p", {}, h("b", {}, reason), h("span", { class: "muted" }, ` (request ${request})`));
  if (devices.length <= FEW) return h("li", {}, text, drawKeys(devices));
  return h("li", {}, text, h("details", {}, h("summary", {}, `${devices.length} devices`), drawKeys(devices)));
}

function drawClaim({ claim, spec, results, refusals, problem, specs }) {
  const messages = claim.pods.filter((pod) => pod.message).map((pod) => h("p", { class: "bad" }, `Pod ${pod.name} waits: ${pod.message}`));
  return [
    h("p", {}, `Namespace ${claim.namespace}, ${claim.state.replaceAll(",", ", ")}.`),
    messages,
    problem ? h("p", { class: "bad" }, problem) : null,
    claim.call ? h("p", { class: claim.failed ? "bad call" : "call" }, claim.call) : null,
    h("h3", {}, "It has"),
    results.length
      ? h("ul", {}, results.map(([request, key]) => h("li", {}, deviceLink(key), ` for request ${request}`)))
      : h("p", {}, "No device."),
    h("h3", {}, "It does not have"),
    refusals.length
      ? h("ul", { class: "refusals" }, refusals.map(drawRefusal))
      : h("p", {}, problem ? "Nothing can be said of any device." : "There is no other device."),
    h("h3", {}, "In full"),
    h("details", { "data-key": "spec" }, h("summary", {}, "What it asks for"), h("pre", { tabindex: "0" }, JSON.stringify(spec, null, 2))),
    specs.map(([path, text]) => h("details", { "data-key": path }, h("summary", {}, "CDI spec that containers get"), h("p", { class: "muted path" }, path), h("pre", { tabindex: "0" }, indent(text)))),
  ];
}

function indent(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function drawDevice({ device, values }) {
  const facts = [
    ["state", describe(device)],
    ["claims", device.claims.length ? device.claims.map((name) => link("claim", name.split("/"), {}, name)).flatMap((one, index) => (index ? [", ", one] : [one])) : "none"],
    device.obstacle ? ["blocked", device.obstacle] : null,
    device.taints.length ? ["taints", device.taints.join(", ")] : null,
    device.health ? ["health", device.health] : null,
    ["pool", device.key[1]],
    ["driver", device.key[0]],
    ...Object.entries(values),
  ];
  return [
    h(
      "p",
      {},
      device.broken
        ? button("Repair", "repair-device", device.key, { disabled: !state.live })
        : button("Break", "break-device", device.key, { class: "danger", disabled: !state.live }),
    ),
    h("dl", {}, facts.filter(Boolean).map(([name, value]) => h("div", { "data-key": name }, h("dt", {}, name), h("dd", {}, value)))),
  ];
}

function drawEntry({ number, seconds, headline, details }) {
  const time = h("time", {}, `${seconds.toFixed(3)} s`);
  if (headline.endsWith(":") && details.length) [headline, details] = [`${headline} ${details[0]}`, details.slice(1)];
  if (!details.length) return h("li", { "data-key": number }, time, " ", headline);
  return h("li", { "data-key": number, class: "long" }, h("details", {}, h("summary", {}, time, " ", headline), h("pre", { tabindex: "0" }, details.join("\n"))));
}

// ---- What the reader does ----

const token = new URLSearchParams(location.search).get("token") ?? "";

/** Do an operation; the answer's value, or why it was refused. */
async function operate(operation, body) {
  try {
    const response = await fetch(`operations/${operation}`, { method: "POST", body, headers: { Authorization: `Bearer ${token}` } });
    const text = await response.text();
    if (response.ok) return { value: JSON.parse(text) };
    const json = response.headers.get("Content-Type")?.startsWith("application/json");
    return { error: json ? JSON.parse(text).error : text };
  } catch {
    return { error: "pydra dev cannot be reached" };
  }
}

document.addEventListener("click", async ({ target }) => {
  const pressed = target.closest("button[data-operation]");
  if (!pressed) return;
  const { operation, argument } = pressed.dataset;
  state.problem = "";
  state.problem = (await operate(operation, argument)).error ?? "";
  render();
});

document.getElementById("apply").addEventListener("click", async () => {
  const { value, error } = await operate("apply", document.getElementById("manifests").value);
  const applied = document.getElementById("applied");
  applied.className = error ? "bad" : "";
  applied.textContent = error ?? `Created: ${value.join(", ")}`;
});

function select() {
  const [kind, ...key] = location.hash.slice(1).split("/").map(decodeURIComponent);
  const known = (kind === "claim" && key.length === 2) || (kind === "device" && key.length === 3);
  state.selection = known ? { kind, key } : null;
  state.detail = null;
  state.problem = "";
  render();
  ask();
}

/** Ask about the selection, again after each change; an answer that comes too late is not shown. */
async function ask() {
  const { selection } = state;
  if (!selection || !state.view) return;
  const { kind, key } = selection;
  const names = kind === "claim" ? ["namespace", "name"] : ["driver", "pool", "name"];
  const query = new URLSearchParams(names.map((name, index) => [name, key[index]]));
  try {
    const detail = await (await fetch(`${kind}?${query}`)).json();
    if (selection !== state.selection) return;
    state.detail = detail;
  } catch {
    return; // the connection is lost, as the page says
  }
  render();
}

window.addEventListener("hashchange", select);

// ---- What the server says ----

let instance = "";

function connect() {
  const stream = new EventSource("stream");
  const on = (event, react) =>
    stream.addEventListener(event, ({ data }) => {
      react(JSON.parse(data));
      render();
    });
  on("hello", (hello) => {
    if (instance && instance !== hello.instance) location.reload(); // pydra dev was started anew
    instance = hello.instance;
    Object.assign(state, { live: true, title: hello.title, entries: [] });
  });
  on("view", (view) => {
    state.view = view;
    ask();
  });
  on("entry", (entry) => {
    state.entries.push({ number: state.entries.length, ...entry });
  });
  stream.addEventListener("error", () => {
    // The browser itself tries again, until something else answers there.
    state.live = false;
    render();
    if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 500);
  });
}

select();
connect();
