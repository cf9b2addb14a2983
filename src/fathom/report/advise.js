// The form's arithmetic: looks a predicted step up, multiplies by the number of steps, and says why something cannot be.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("table").textContent);
  const at = Object.fromEntries(data.columns.map((name, index) => [name, index]));
  const AXES = ["model", "device", "count", "interconnect", "batch", "precision"];
  const HOUR = 3600;
  const LEAST_SAVED = 0.99; // of the time, from which a change is worth a line
  const steps = new Map();
  for (const row of data.rows) {
    const step = Object.fromEntries(data.columns.map((name) => [name, row[at[name]]]));
    const key = keyOf(step);
    if (!steps.has(key) || steps.get(key).step_s > step.step_s) steps.set(key, step); // the faster engine
  }
  const find = (name) => document.getElementById(name);

  function keyOf(choice) {
    return AXES.map((axis) => (axis === "interconnect" && choice.count === 1 ? null : choice[axis])).join("|");
  }

  /** The first reason that fits the choice: what a refusal leaves open matches anything. */
  function refusal(choice) {
    const fits = (each) => AXES.every((axis) => each[axis] === null || each[axis] === undefined || each[axis] === choice[axis]);
    const found = data.refusals.find(fits);
    if (found) return found.why;
    return choice.count > 1 && !choice.interconnect ? "several accelerators need an interconnect" : "not among the settings that were predicted";
  }

  /** Hours with their interval, energy and cost of a choice; or why there are none. */
  function answer(choice) {
    if (!(choice.items > 0) || !(choice.epochs > 0)) return { refused: "data size and epochs must be above 0" };
    if (!(choice.items < data.most) || !(choice.epochs < data.most)) return { refused: `data size and epochs must be below ${data.most.toExponential()}` };
    if (choice.price !== null && !(choice.price >= 0)) return { refused: "a price must be 0 or more" };
    if (choice.price !== null && !(choice.price < data.most_price)) return { refused: `a price must be below ${data.most_price.toExponential()}` };
    const step = steps.get(keyOf(choice));
    if (!step) return { refused: refusal(choice) };
    const number = Math.ceil(choice.items / (choice.count * step.items)) * choice.epochs;
    const device = data.devices.find((each) => each.name === choice.device);
    const hours = (number * step.step_s) / HOUR;
    return {
      step, device, hours,
      low: (number * step.low_s) / HOUR,
      high: (number * step.high_s) / HOUR,
      rate: (choice.count * step.items) / step.step_s,
      kwh: device.tdp_w === null ? null : (device.tdp_w * choice.count * hours) / 1000,
      cost: choice.price === null ? null : choice.price * choice.count * hours,
    };
  }

  /** What is faster, or possible at all, when one thing is changed: the best of each axis, the fastest first. */
  function changes(choice) {
    const now = answer(choice);
    const best = new Map();
    for (const step of steps.values()) {
      const differ = AXES.filter((axis) => axis !== "model" && axis !== "interconnect" && step[axis] !== choice[axis]);
      const links = choice.count > 1 && step.count > 1 && step.interconnect !== choice.interconnect;
      if (step.model !== choice.model || differ.length + links !== 1) continue;
      const axis = links ? "interconnect" : differ[0];
      const there = answer({ ...choice, [axis]: step[axis], interconnect: step.interconnect ?? choice.interconnect });
      const improves = !there.refused && (now.refused || there.hours < LEAST_SAVED * now.hours);
      if (improves && !(best.get(axis)?.hours <= there.hours)) {
        const times = now.refused ? null : now.hours / there.hours;
        best.set(axis, { axis, to: step[axis], link: axis === "count" ? step.interconnect : null, hours: there.hours, times });
      }
    }
    return [...best.values()].sort((one, other) => one.hours - other.hours);
  }

  function rules(choice) {
    const device = data.devices.find((each) => each.name === choice.device);
    if (!device.gpu) return [];
    const found = [`${data.threads_per_gpu * choice.count} CPU threads: ${data.threads_per_gpu} per GPU`];
    if (device.memory_gb !== null) {
      const ram = data.ram_per_gpu_memory * device.memory_gb * choice.count;
      found.push(`${shown(ram)} GB of RAM: ${data.ram_per_gpu_memory} x GPU memory x number of GPUs`);
    }
    const now = answer(choice);
    if (!now.refused && choice.count > 1) {
      const share = Math.round((100 * now.step.exposed_s) / now.step.step_s);
      found.push(`${share} % of a step is communication that ${choice.interconnect} does not hide: fast interconnects matter most for less compute-intensive models`);
    }
    return found;
  }

  /** Three digits, as a person reads them. */
  function shown(value) {
    if (value === 0) return "0";
    if (value >= 1e15) return value.toExponential(2);
    if (value >= 1000) return Math.round(value).toLocaleString("en-US");
    return Number(value.toPrecision(3)).toString();
  }

  function duration(hours) {
    const [value, unit] = hours >= 48 ? [hours / 24, "day"] : hours >= 1 ? [hours, "hour"] : hours >= 1 / 60 ? [60 * hours, "minute"] : [3600 * hours, "second"];
    return `${shown(value)} ${unit}${shown(value) === "1" ? "" : "s"}`;
  }

  function chosen() {
    const price = find("price").value;
    return {
      items: Number(find("items").value), epochs: Number(find("epochs").value),
      model: find("model").value, device: find("device").value, count: Number(find("count").value),
      interconnect: find("interconnect").value || null, batch: Number(find("batch").value),
      precision: find("precision").value, price: price === "" ? null : Number(price),
    };
  }

  function fact(list, name, value) {
    const box = list.appendChild(document.createElement("div"));
    box.appendChild(document.createElement("dt")).textContent = name;
    box.appendChild(document.createElement("dd")).textContent = value;
  }

  function show() {
    find("interconnect").disabled = find("count").value === "1";
    const choice = chosen();
    const found = answer(choice);
    const facts = find("facts");
    facts.replaceChildren();
    find("refusal").textContent = found.refused ? `Not possible: ${found.refused}` : "";
    find("range").hidden = Boolean(found.refused);
    find("hours").textContent = found.refused ? "" : duration(found.hours);
    find("bounds").textContent = found.refused ? "" : `${duration(found.low)} to ${duration(found.high)}`;
    if (!found.refused) {
      const [from, to] = [found.low / found.high, found.hours / found.high];
      find("range").firstElementChild.style.cssText = `left:${100 * from}%;width:${100 * (1 - from)}%`;
      find("range").lastElementChild.style.left = `calc(${100 * Math.min(to, 1)}% - 2px)`;
      const model = data.models.find((each) => each.name === choice.model);
      fact(facts, `${model.item}s a second`, shown(found.rate));
      fact(facts, "bound by", found.step.bound_by);
      fact(facts, "memory of each, of " + (found.device.memory_gb === null ? "unknown" : `${shown(found.device.memory_gb)} GB`), `${shown(found.step.memory_bytes / 1e9)} GB`);
      if (found.step.engine !== "eager") fact(facts, "engine", found.step.engine);
      fact(facts, "energy", found.kwh === null ? "not known" : `${shown(found.kwh)} kWh at TDP`);
      fact(facts, "cost", found.cost === null ? "no price given" : shown(found.cost));
    }
    const rows = changes(choice).slice(0, 5).map((each) => {
      const row = document.createElement("tr");
      const link = each.link ? ` on ${each.link}` : "";
      for (const [text, number] of [[`${each.axis}: ${each.to}${link}`, false], [duration(each.hours), true], [each.times === null ? "—" : shown(each.times), true]]) {
        const cell = row.appendChild(document.createElement("td"));
        cell.textContent = text;
        if (number) cell.className = "number";
      }
      return row;
    });
    find("changes").replaceChildren(...rows);
    find("next").textContent = found.refused ? "Possible with one change" : "Next best changes";
    find("none").textContent = rows.length ? "" : `No single change that was predicted is ${found.refused ? "possible" : "faster"}.`;
    find("rules").replaceChildren(...rules(choice).map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  }

  function fill(name, values) {
    const select = find(name);
    const before = select.value;
    select.replaceChildren(...values.map((value) => new Option(value, value)));
    if (values.map(String).includes(before)) select.value = before;
  }

  const distinct = (name, rows) => [...new Set(rows.map((row) => row[at[name]]))].filter((value) => value !== null);
  const numbers = (values) => values.sort((one, other) => one - other);

  /** Batches and precisions are those of the model, of which another may have others. */
  function fillForModel() {
    const model = find("model").value;
    const asked = data.refusals.filter((each) => each.model === model);
    const own = data.rows.filter((row) => row[at.model] === model);
    fill("batch", numbers([...new Set([...distinct("batch", own), ...asked.map((each) => each.batch).filter(Boolean)])]));
    fill("precision", [...new Set([...distinct("precision", own), ...asked.map((each) => each.precision).filter(Boolean)])]);
  }

  /** What is chosen at first was predicted; the first of each list need not fit together. */
  function startPossible() {
    const own = data.rows.filter((row) => row[at.model] === find("model").value && row[at.count] === 1);
    const first = own.find((row) => row[at.device] === find("device").value) ?? own[0];
    for (const name of first ? ["device", "batch", "precision"] : []) find(name).value = first[at[name]];
  }

  fill("model", data.models.map((each) => each.name));
  fill("device", data.devices.map((each) => each.name));
  fill("count", numbers(distinct("count", data.rows)));
  fill("interconnect", distinct("interconnect", data.rows));
  fillForModel();
  startPossible();
  const priced = () => { find("price").value = data.prices[find("device").value] ?? ""; };
  priced();
  // a field is told of its input before the form around it is: what depends on it is filled when the answer is shown
  find("model").addEventListener("input", fillForModel);
  find("device").addEventListener("input", priced);
  find("form").addEventListener("submit", (event) => event.preventDefault());
  find("form").addEventListener("input", show);
  show();
  window.advise = { answer, changes, rules, refusal, shown, duration };
  document.documentElement.setAttribute("data-ready", "");
})();
