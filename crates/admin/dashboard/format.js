// Formats of numbers, times and clients.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function count(number) {
  if (number === null || number === undefined) return "";
  return Math.abs(number) < 100000 ? whole.format(number) : short.format(number);
}

export function rate(number) {
  if (!number) return "0";
  return number < 10 ? number.toFixed(1) : count(number);
}

export function micros(number) {
  if (number === null || number === undefined) return "–";
  if (number < 1000) return `${Math.round(number)} µs`;
  if (number < 1e6) return `${(number / 1000).toPrecision(3)} ms`;
  return `${(number / 1e6).toPrecision(3)} s`;
}

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) { number /= 1024; unit += 1; }
  return `${unit ? number.toFixed(1) : number} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "never";
  if (seconds < 1) return seconds === 0 ? "now" : `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${Math.round(seconds * 10) / 10} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function timeOfDay(unix) {
  return new Date(unix * 1000).toLocaleTimeString("en-GB");
}

export function dateTime(unix) {
  return unix ? new Date(unix * 1000).toLocaleString("en-GB") : "";
}

/// Returns the name of a client: a text, or the values of several attributes. A client without a name, because it may be
/// a secret, is shown by the start of its hash.
export function clientName(name, id) {
  if (name === null || name === undefined) return id.replace(/#([0-9a-f]{12})[0-9a-f]+$/, "#$1…");
  if (typeof name === "string") return name;
  return Object.entries(name).map(([attribute, value]) => `${attribute}: ${value}`).join(", ");
}
