// Numbers as widgets/figures.py has them, so that page and terminal show equal figures.

/** A number with so many decimals, rounded half to even as in Python. */
function fixed(number, digits) {
  const scale = 10 ** digits;
  const low = Math.floor(number * scale);
  const isHalf = number * scale - low === 0.5 && (low + 0.5) / scale === number;
  return isHalf && low % 2 === 0 ? (low / scale).toFixed(digits) : number.toFixed(digits);
}

/** A time: 0.4ms, 21ms, 1.23s, 3m04s, 2h14m. */
export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  if (seconds < 0.00995) return `${fixed(seconds * 1000, 1)}ms`;
  if (seconds < 0.9995) return `${fixed(seconds * 1000, 0)}ms`;
  if (seconds < 59.95) return `${fixed(seconds, seconds < 9.995 ? 2 : 1)}s`;
  const whole = Number(fixed(seconds, 0));
  const minutes = Math.floor(whole / 60);
  if (whole < 600) return whole % 60 ? `${minutes}m${String(whole % 60).padStart(2, "0")}s` : `${minutes}m`;
  if (whole < 3600) return `${minutes}m`;
  const hours = Math.floor(whole / 3600);
  if (hours < 10) return `${hours}h${String(minutes % 60).padStart(2, "0")}m`;
  return hours < 100 ? `${hours}h` : `${Math.floor(hours / 24)}d`;
}

/** A number in at most four characters: 47, 9.8k, 112k, 1.3M. */
export function compact(number) {
  if (number == null || !Number.isFinite(number)) return "–";
  let rest = number;
  for (const unit of ["", "k", "M", "G"]) {
    if (rest < 9.95) return (unit ? fixed(rest, 1) : fixed(rest, 1).replace(/\.0$/, "")) + unit;
    if (rest < 999.5) return fixed(rest, 0) + unit;
    rest /= 1000;
  }
  return `${fixed(rest, 0)}T`;
}

export function percent(share) {
  if (share == null || !Number.isFinite(share)) return "–";
  if (share > 0 && share < 0.01) return "<1%";
  if (share > 0.99 && share < 1) return "99%";
  return `${fixed(share * 100, 0)}%`;
}

export const counted = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
export const sum = (items, of) => items.reduce((total, item) => total + of(item), 0);
