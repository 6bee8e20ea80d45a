// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <tuple>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/cli/facts.h"
#include "tessera/engine/metric_lines.h"
#include "tessera/engine/speed_meter.h"
#include "tessera/report/run_status.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct Point {
  std::int64_t step = 0;
  double value = std::numeric_limits<double>::infinity();
};

/// Sums over metrics.jsonl.
struct Totals {
  std::int64_t steps = 0, last_step = 0, tokens = 0, skipped = 0, mem_peak_bytes = 0;
  double epoch = 0.0;
  double seconds = 0.0, data_s = 0.0, comm_s = 0.0;
  double disk_s = 0.0, disk_bytes = 0.0;  // waits for what rests on a disk, and what travelled
  double trained_tokens = 0.0;            // within those seconds
  double padding_tokens = 0.0;            // beside them
  std::optional<Point> first, last, best, last_eval, best_eval;
};

std::optional<double> number(const json::Value& line, const char* key) {
  const json::Value* const value = line.find(key);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->as_double();
}

void keep_smaller(std::optional<Point>& best, const Point& point) {
  if (!best || point.value < best->value) best = point;
}

void add_step(Totals& totals, const json::Value& line, std::int64_t step) {
  ++totals.steps;
  totals.last_step = step;
  // A non-finite loss is stored as null.
  if (const auto loss = number(line, "loss")) {
    const Point point{step, *loss};
    if (!totals.first) totals.first = point;
    totals.last = point;
    keep_smaller(totals.best, point);
  }
  totals.tokens = static_cast<std::int64_t>(number(line, "tokens").value_or(0.0));
  totals.skipped = static_cast<std::int64_t>(number(line, "skipped").value_or(0.0));
  totals.epoch = number(line, "epoch").value_or(0.0);
  totals.mem_peak_bytes =
      std::max(totals.mem_peak_bytes,
               static_cast<std::int64_t>(number(line, "mem_peak_bytes").value_or(0.0)));
  const double seconds = number(line, "step_ms").value_or(0.0) / 1e3;
  totals.seconds += seconds;
  totals.data_s += number(line, "data_ms").value_or(0.0) / 1e3;
  totals.comm_s += number(line, "comm_ms").value_or(0.0) / 1e3;
  totals.disk_s += number(line, "disk_ms").value_or(0.0) / 1e3;
  for (const char* key : {"disk_read_bytes", "disk_written_bytes"})
    totals.disk_bytes += number(line, key).value_or(0.0);
  const double tokens = number(line, "tokens_per_s").value_or(0.0) * seconds;
  totals.trained_tokens += tokens;
  const double padding = std::min(number(line, "padding_share").value_or(0.0), 0.999999);
  totals.padding_tokens += tokens * padding / (1.0 - padding);
}

void add_line(Totals& totals, const json::Value& line) {
  const auto step = static_cast<std::int64_t>(number(line, "step").value_or(0.0));
  if (line.find("loss") != nullptr) add_step(totals, line, step);
  if (const auto loss = number(line, "eval_loss")) {
    totals.last_eval = Point{step, *loss};
    keep_smaller(totals.best_eval, *totals.last_eval);
  }
}

Totals read_totals(const fs::path& path) {
  Totals totals;
  if (!fs::exists(path)) return totals;
  engine::for_each_metric(files::read(path), [&](const std::string&, const json::Value& line) {
    add_line(totals, line);
  });
  return totals;
}

void add_state(Facts& facts, const report::RunStatus& status) {
  const std::string words = status.state.empty() ? "unknown" : status.state;
  const auto& code = status.exit_code;
  facts.push_back({"state",
                   "state",
                   code ? fmt::format("{}, exit code {}", words, *code) : words,
                   json::Value::string(words)});
  if (code) facts.push_back({"exit_code", "", "", json::Value::integer(*code)});
  for (const auto& [key, label, value] : {std::tuple("message", "message", &status.message),
                                          std::tuple("go_on", "to continue", &status.go_on)}) {
    if (!value->empty()) facts.push_back({key, label, *value, json::Value::string(*value)});
  }
}

void add_point(Facts& facts,
               const std::string& key,
               const std::string& label,
               const std::optional<Point>& point) {
  if (!point) return;
  facts.push_back({key,
                   label,
                   fmt::format("{:.4f} at step {}", point->value, point->step),
                   json::Value::number(point->value)});
  facts.push_back({key + "_step", "", "", json::Value::integer(point->step)});
}

void add_time(Facts& facts, const Totals& totals) {
  if (totals.steps == 0 || totals.seconds <= 0.0) return;
  const auto share = [&](double part) { return 100.0 * part / totals.seconds; };
  const double rate = totals.trained_tokens / totals.seconds;
  facts.push_back({"train_s",
                   "training time",
                   text::duration(totals.seconds),
                   json::Value::number(totals.seconds)});
  facts.push_back({"tokens_per_s", "tokens/s", text::count(rate), json::Value::number(rate)});
  if (totals.padding_tokens > 0.0) {
    const double padding = totals.padding_tokens / (totals.padding_tokens + totals.trained_tokens);
    facts.push_back({"padding_share",
                     "padding",
                     fmt::format("{:.1f} % of the positions, not counted as tokens", 100 * padding),
                     json::Value::number(padding)});
  }
  const double step_ms = 1e3 * totals.seconds / static_cast<double>(totals.steps);
  facts.push_back(
      {"step_ms", "a step", fmt::format("{:.1f} ms", step_ms), json::Value::number(step_ms)});
  facts.push_back({"data_share",
                   "data fraction",
                   fmt::format("{:.1f} %", share(totals.data_s)),
                   json::Value::number(share(totals.data_s) / 100.0)});
  facts.push_back({"comm_share",
                   "communication fraction",
                   fmt::format("{:.1f} %", share(totals.comm_s)),
                   json::Value::number(share(totals.comm_s) / 100.0)});
  if (totals.disk_bytes <= 0.0) return;
  const double bytes = totals.disk_bytes / static_cast<double>(totals.steps);
  facts.push_back({"disk_share",
                   "disk wait fraction",
                   fmt::format("{:.1f} %", share(totals.disk_s)),
                   json::Value::number(share(totals.disk_s) / 100.0)});
  facts.push_back({"disk_bytes_per_step",
                   "disk traffic of a step",
                   text::bytes(static_cast<std::uint64_t>(bytes)),
                   json::Value::number(bytes)});
}

/// Adds the arithmetic of runs in which it was counted, and the share of the machine's own rate.
void add_speed(Facts& facts, const Totals& totals, const fs::path& run) {
  const auto speed = engine::read_speed(run);
  if (totals.steps == 0 || totals.seconds <= 0.0) return;
  if (!speed || speed->peak <= 0.0) {
    facts.push_back(
        {"mfu_note",
         "arithmetic",
         "not measured: run tessera bench machine once, and later runs of three steps or "
         "more are compared with this machine's rate of products",
         json::Value::string("not measured")});
    return;
  }
  const double step_s = totals.seconds / static_cast<double>(totals.steps);
  facts.push_back({"flops_per_s",
                   "arithmetic",
                   speed->text(step_s),
                   json::Value::number(speed->flops / step_s)});
  facts.push_back({"mfu", "", "", json::Value::number(speed->flops / step_s / speed->peak)});
}

void add_checkpoints(Facts& facts, const fs::path& run) {
  const fs::path root = run / checkpoint::kFolderOfRun;
  const auto complete = fs::exists(root) ? checkpoint::list(root) : std::vector<fs::path>();
  const std::string newest = complete.empty() ? "none" : complete.back().filename().string();
  facts.push_back({"checkpoints",
                   "checkpoints",
                   complete.empty()
                       ? "none"
                       : fmt::format("{} complete, the newest is {}", complete.size(), newest),
                   json::Value::integer(static_cast<std::int64_t>(complete.size()))});
  if (!complete.empty()) {
    facts.push_back({"newest_checkpoint", "", "", json::Value::string(complete.back().string())});
  }
}

}  // namespace

Facts run_facts(const fs::path& run) {
  TESSERA_REQUIRE(
      fs::is_directory(run) &&
          (fs::exists(run / "metrics.jsonl") || fs::exists(run / "status.json")),
      Io,
      fmt::format("{} is not the folder of a run: it has neither metrics.jsonl nor status.json",
                  run.string()),
      "give the run.dir of a training run, such as runs/my");
  const Totals totals = read_totals(run / "metrics.jsonl");
  Facts facts;
  facts.push_back({"run", "run", run.string(), json::Value::string(run.string())});
  add_state(facts, report::run_status(run));
  facts.push_back({"steps",
                   "steps",
                   text::with_commas(totals.last_step),
                   json::Value::integer(totals.last_step)});
  facts.push_back(
      {"epoch", "epoch", fmt::format("{:.2f}", totals.epoch), json::Value::number(totals.epoch)});
  facts.push_back(
      {"tokens", "tokens", text::with_commas(totals.tokens), json::Value::integer(totals.tokens)});
  add_point(facts, "first_loss", "first loss", totals.first);
  add_point(facts, "last_loss", "last loss", totals.last);
  add_point(facts, "best_loss", "best loss", totals.best);
  add_point(facts, "last_eval_loss", "last evaluation", totals.last_eval);
  add_point(facts, "best_eval_loss", "best evaluation", totals.best_eval);
  add_time(facts, totals);
  add_speed(facts, totals, run);
  facts.push_back(
      {"mem_peak_bytes",
       "peak memory",
       text::bytes(static_cast<std::uint64_t>(totals.mem_peak_bytes)) + " (largest rank)",
       json::Value::integer(totals.mem_peak_bytes)});
  if (totals.skipped > 0) {
    facts.push_back({"skipped",
                     "skipped steps",
                     text::with_commas(totals.skipped),
                     json::Value::integer(totals.skipped)});
  }
  add_checkpoints(facts, run);
  return facts;
}

}  // namespace tessera::cli
