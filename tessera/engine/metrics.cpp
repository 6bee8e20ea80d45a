// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/metrics.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/median.h"
#include "tessera/base/text.h"
#include "tessera/base/wall_clock.h"
#include "tessera/config/json.h"
#include "tessera/engine/metric_lines.h"

namespace tessera::engine {
namespace {

/// The values of a printed line that are means over the steps since the last one.
constexpr std::array kTimes = {&StepReport::seconds,
                               &StepReport::data_s,
                               &StepReport::forward_s,
                               &StepReport::backward_s,
                               &StepReport::reduce_s,
                               &StepReport::optimizer_s,
                               &StepReport::comm_s,
                               &StepReport::generate_s};
constexpr std::array kCounts = {
    &StepReport::batch_tokens, &StepReport::padding_tokens, &StepReport::generated_tokens};

constexpr double kShownPadding = 0.01;  // smallest share that a step line shows

/// The terms of a loss with several terms.
json::Value terms_json(const Metrics& metrics) {
  json::Value out = json::Value::object();
  for (const Metric& metric : metrics)
    out[metric.name] = json::Value::number(metric.mean);
  return out;
}

/// The balance of each sparse layer: "load.h.0", "entropy.h.0" and, where choices were dropped,
/// "dropped.h.0".
json::Value experts_json(const std::vector<report::LayerLoads>& layers) {
  json::Value out = json::Value::object();
  for (const report::LayerLoads& layer : layers)
    out["load." + layer.layer] = json::Value::number(layer.unevenness());
  for (const report::LayerLoads& layer : layers)
    out["entropy." + layer.layer] = json::Value::number(layer.relative_entropy());
  for (const report::LayerLoads& layer : layers) {
    if (layer.dropped > 0)
      out["dropped." + layer.layer] = json::Value::number(layer.dropped_share());
  }
  return out;
}

double milliseconds(double seconds) {
  return seconds * 1e3;
}

std::int64_t travels(const memory::TierUse& disk) {
  return disk.read_bytes + disk.written_bytes;
}

/// The share of a step's positions that are padding.
double padding_share(const StepReport& report) {
  return static_cast<double>(report.padding_tokens) /
         static_cast<double>(
             std::max<std::int64_t>(report.padding_tokens + report.batch_tokens, 1));
}

double generation_rate(const StepReport& report) {
  return static_cast<double>(report.generated_tokens) / std::max(report.generate_s, 1e-9);
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, std::int64_t last_step) : path_(path) {
  drop_later_lines(path, last_step);
  fd_ = files::open_own(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
}

MetricsFile::~MetricsFile() {
  if (fd_ >= 0) ::close(fd_);
}

void MetricsFile::append(const std::string& line) {
  const ssize_t written = ::write(fd_, line.data(), line.size());
  TESSERA_REQUIRE(written == static_cast<ssize_t>(line.size()),
                  Io,
                  fmt::format("cannot write {}: {}",
                              path_.string(),
                              written < 0 ? std::strerror(errno) : "short write"),
                  "free disk space");
}

json::Value step_values(const StepReport& report, bool breakdown, double time) {
  json::Value out = json::Value::object();
  out["step"] = json::Value::integer(report.step);
  out["epoch"] = json::Value::number(report.epoch);
  out["loss"] = json::Value::number(report.loss);
  if (report.metrics.size() > 1) out["terms"] = terms_json(report.metrics);
  out["lr"] = json::Value::number(report.lr);
  out["grad_norm"] = json::Value::number(report.grad_norm);
  out["tokens"] = json::Value::integer(report.tokens);
  out["samples"] = json::Value::integer(report.samples);
  out["time"] = json::Value::number(time);
  out["tokens_per_s"] =
      json::Value::number(static_cast<double>(report.batch_tokens) / report.seconds);
  if (report.padding_tokens > 0) out["padding_share"] = json::Value::number(padding_share(report));
  if (report.matrix_share > 0) out["matrix_share"] = json::Value::number(report.matrix_share);
  if (report.generated_tokens > 0)
    out["generated_tokens_per_s"] = json::Value::number(generation_rate(report));
  out["step_ms"] = json::Value::number(milliseconds(report.seconds));
  out["comm_ms"] = json::Value::number(milliseconds(report.comm_s));
  out["data_ms"] = json::Value::number(milliseconds(report.data_s));
  if (travels(report.disk) > 0) {
    out["disk_read_bytes"] = json::Value::integer(report.disk.read_bytes);
    out["disk_written_bytes"] = json::Value::integer(report.disk.written_bytes);
    out["disk_ms"] = json::Value::number(milliseconds(report.disk.waited_s));
  }
  if (report.early.committed + report.early.repeated > 0) {
    out["early_updates"] = json::Value::integer(report.early.committed);
    out["early_repeats"] = json::Value::integer(report.early.repeated);
  }
  if (breakdown) {
    out["forward_ms"] = json::Value::number(milliseconds(report.forward_s));
    out["backward_ms"] = json::Value::number(milliseconds(report.backward_s));
    out["reduce_ms"] = json::Value::number(milliseconds(report.reduce_s));
    out["optimizer_ms"] = json::Value::number(milliseconds(report.optimizer_s));
  }
  out["mem_peak_bytes"] = json::Value::integer(report.mem_peak_bytes);
  out["skipped"] = json::Value::integer(report.skipped_total);
  if (report.loss_scale) out["loss_scale"] = json::Value::number(*report.loss_scale);
  if (!report.expert_loads.empty()) out["experts"] = experts_json(report.expert_loads);
  return out;
}

json::Value eval_values(std::int64_t step, const EvalReport& report, EvalSplit split) {
  const std::string of = split == EvalSplit::Test ? "test_" : "eval_";
  json::Value out = json::Value::object();
  out["step"] = json::Value::integer(step);
  out[of + "loss"] = json::Value::number(report.loss);
  out[of + "tokens"] = json::Value::integer(report.tokens);
  if (report.metrics.size() > 1) out[of + "terms"] = terms_json(report.metrics);
  return out;
}

void MetricsFile::write(const StepReport& report, bool breakdown) {
  append(step_values(report, breakdown, unix_time()).dump() + '\n');
}

void MetricsFile::write(std::int64_t step, const EvalReport& report, EvalSplit split) {
  append(eval_values(step, report, split).dump() + '\n');
}

void StepsSincePrinted::add(const StepReport& report) {
  ++steps_;
  for (const auto time : kTimes)
    sums_.*time += report.*time;
  for (const auto count : kCounts)
    sums_.*count += report.*count;
}

StepReport StepsSincePrinted::take(StepReport last) {
  const auto steps = static_cast<double>(std::max<std::int64_t>(steps_, 1));
  for (const auto time : kTimes)
    last.*time = sums_.*time / steps;
  for (const auto count : kCounts)
    last.*count = std::llround(static_cast<double>(sums_.*count) / steps);
  *this = {};
  return last;
}

StepSpeed median_speed(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return {};
  constexpr std::size_t kTail = 65536;  // an incomplete line at its beginning is left out
  const std::string all = files::read(path);
  std::vector<double> speeds, times;
  for_each_metric(
      all.substr(all.size() - std::min(all.size(), kTail)),
      [&](const std::string&, const json::Value& value) {
        const json::Value *const speed = value.find("tokens_per_s"), *const time =
                                                                         value.find("step_ms");
        if (speed == nullptr || time == nullptr) return;
        if (!speed->is_number() || !time->is_number()) return;
        speeds.push_back(speed->as_double());
        times.push_back(time->as_double() / 1e3);
      });
  return {median_of(std::move(speeds)), median_of(std::move(times))};
}

report::LossHistory read_losses(const std::filesystem::path& path) {
  report::LossHistory history;
  if (!std::filesystem::exists(path)) return history;
  for_each_metric(files::read(path), [&](const std::string&, const json::Value& value) {
    const std::int64_t step = value.find("step")->as_integer().value_or(0);
    const json::Value* loss = value.find("loss");
    const json::Value* eval = value.find("eval_loss");
    if (loss != nullptr) history.last_step = std::max(history.last_step, step);
    if (loss != nullptr && loss->is_number()) history.train.push_back({step, loss->as_double()});
    if (eval != nullptr && eval->is_number()) history.eval.push_back({step, eval->as_double()});
  });
  return history;
}

TermHistory read_terms(const std::filesystem::path& path) {
  TermHistory out;
  if (!std::filesystem::exists(path)) return out;
  for_each_metric(files::read(path), [&](const std::string&, const json::Value& value) {
    const std::int64_t step = value.find("step")->as_integer().value_or(0);
    for (const char* const key : {"terms", "eval_terms"}) {
      const json::Value* const terms = value.find(key);
      if (terms == nullptr || !terms->is_object()) continue;
      for (const auto& [name, term] : terms->members()) {
        if (term.is_number())
          out[std::string(key) + "." + name].push_back({step, term.as_double()});
      }
    }
  });
  return out;
}

std::string step_line(const StepReport& report,
                      std::int64_t max_steps,
                      double eta_s,
                      std::string_view unit) {
  const double seconds = report.seconds > 0 ? report.seconds : 1e-9;
  std::string line = fmt::format(
      "step {}/{} | loss {:.4f}{} | lr {:.2e} | gnorm {:.3f} | {} {}/s{} | mem {} | data {:.0f}% "
      "comm "
      "{:.0f}%",
      report.step,
      max_steps,
      text::unsigned_nan(report.loss),
      metrics_text(report.metrics),
      report.lr,
      text::unsigned_nan(report.grad_norm),
      text::count(static_cast<double>(report.batch_tokens) / seconds),
      unit,
      padding_share(report) >= kShownPadding
          ? fmt::format(" (padding {:.0f}%)", 100.0 * padding_share(report))
          : "",
      text::bytes(static_cast<std::uint64_t>(report.mem_peak_bytes)),
      100.0 * report.data_s / seconds,
      100.0 * report.comm_s / seconds);
  if (travels(report.disk) > 0) {
    line += fmt::format(" disk {:.0f}% ({})",
                        100.0 * report.disk.waited_s / seconds,
                        text::bytes(static_cast<std::uint64_t>(travels(report.disk))));
  }
  if (report.generated_tokens > 0)
    line += fmt::format(" | {} generated tok/s", text::count(generation_rate(report)));
  if (report.skipped_total > 0) line += fmt::format(" | skipped {}", report.skipped_total);
  if (report.skipped) line += ": " + report.skip_reason;
  if (eta_s > 0) line += " | ETA " + text::duration(eta_s);
  return line;
}

std::string breakdown_line(const StepReport& report) {
  return fmt::format(
      "  data {:.1f} ms | forward {:.1f} ms | backward {:.1f} ms | reduce {:.1f} ms | optimizer "
      "{:.1f} ms",
      milliseconds(report.data_s),
      milliseconds(report.forward_s),
      milliseconds(report.backward_s),
      milliseconds(report.reduce_s),
      milliseconds(report.optimizer_s));
}

}  // namespace tessera::engine
