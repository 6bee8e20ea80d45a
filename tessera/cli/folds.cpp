// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/folds.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/overrides.h"
#include "tessera/engine/metric_lines.h"

namespace tessera::cli {
namespace {

constexpr const char* kLoss = "loss";

/// The values of an evaluation in a line of metrics.jsonl; `of` is "eval_" or "test_". Empty: it
/// has no such evaluation.
std::map<std::string, double> values_in(const json::Value& line, const std::string& of) {
  std::map<std::string, double> out;
  const json::Value* const loss = line.find(of + kLoss);
  if (loss == nullptr || !loss->is_number()) return out;
  out[kLoss] = loss->as_double();
  const json::Value* const terms = line.find(of + "terms");
  if (terms == nullptr || !terms->is_object()) return out;
  for (const auto& [name, value] : terms->members())
    if (value.is_number()) out.try_emplace(name, value.as_double());
  return out;
}

using Values = std::map<std::string, double> FoldResult::*;

/// The metrics that every fold has, "loss" first.
std::vector<std::string> columns_of(const std::vector<FoldResult>& results, Values which) {
  std::vector<std::string> out;
  if (results.empty()) return out;
  for (const auto& [name, value] : results.front().*which) {
    const bool everywhere = std::ranges::all_of(
        results, [&](const FoldResult& one) { return (one.*which).contains(name); });
    if (everywhere) out.push_back(name);
  }
  std::ranges::stable_partition(out, [](const std::string& name) { return name == kLoss; });
  return out;
}

struct Moments {
  double mean = 0.0, sd = 0.0;
};
Moments moments_of(const std::vector<FoldResult>& results, Values which, const std::string& name) {
  Moments out;
  const auto count = static_cast<double>(results.size());
  for (const FoldResult& one : results)
    out.mean += (one.*which).at(name) / count;
  for (const FoldResult& one : results)
    out.sd += std::pow((one.*which).at(name) - out.mean, 2);
  out.sd = results.size() > 1 ? std::sqrt(out.sd / (count - 1)) : 0.0;
  return out;
}

json::Value moments_json(const std::vector<FoldResult>& results, Values which, bool deviation) {
  json::Value out = json::Value::object();
  for (const std::string& name : columns_of(results, which)) {
    const Moments moments = moments_of(results, which, name);
    out[name] = json::Value::number(deviation ? moments.sd : moments.mean);
  }
  return out;
}

json::Value values_json(const FoldResult& result, Values which) {
  json::Value out = json::Value::object(
      {{"fold", json::Value::integer(result.fold)}, {"step", json::Value::integer(result.step)}});
  for (const auto& [name, value] : result.*which)
    out[name] = json::Value::number(value);
  return out;
}

json::Value part_json(const std::vector<FoldResult>& results, Values which) {
  json::Value all = json::Value::array();
  for (const FoldResult& one : results)
    all.push_back(values_json(one, which));
  return json::Value::object({{"results", std::move(all)},
                              {"mean", moments_json(results, which, /*deviation=*/false)},
                              {"sd", moments_json(results, which, /*deviation=*/true)}});
}

void append_table(const std::vector<FoldResult>& results,
                  Values which,
                  std::vector<std::string>& lines) {
  const std::vector<std::string> columns = columns_of(results, which);
  const auto width = [](const std::string& name) { return std::max<std::size_t>(8, name.size()); };
  std::string head = fmt::format("  {:<6}{:>8}", "fold", "step");
  for (const std::string& name : columns)
    head += fmt::format("  {:>{}}", name, width(name));
  lines.push_back(std::move(head));
  for (const FoldResult& one : results) {
    std::string line = fmt::format("  {:<6}{:>8}", one.fold, one.step);
    for (const std::string& name : columns)
      line += fmt::format("  {:>{}.4f}", (one.*which).at(name), width(name));
    lines.push_back(std::move(line));
  }
  for (const bool deviation : {false, true}) {
    std::string line = fmt::format("  {:<6}{:>8}", deviation ? "sd" : "mean", "");
    for (const std::string& name : columns) {
      const Moments moments = moments_of(results, which, name);
      line += fmt::format("  {:>{}.4f}", deviation ? moments.sd : moments.mean, width(name));
    }
    lines.push_back(std::move(line));
  }
}

bool has_test(const std::vector<FoldResult>& results) {
  return !columns_of(results, &FoldResult::test).empty();
}

std::vector<std::string> line_of_fold(const FoldsCommand& command, std::int64_t fold) {
  const std::string dir = (command.dir / fmt::format("fold-{}", fold)).string();
  std::vector<std::string> out = command.line;
  out.insert(out.end(),
             {"--set",
              fmt::format("data.folds={}", command.folds),
              "--set",
              fmt::format("data.fold={}", fold),
              "--set",
              "run.dir=" + json::Value::string(dir).dump()});
  if (command.sets_every) out.insert(out.end(), {"--set", "eval.every=epoch"});
  if (command.as_json) out.emplace_back(command.dry_run ? "--json" : "--quiet");
  return out;
}

}  // namespace

FoldResult read_fold(const std::string& metrics,
                     std::int64_t fold,
                     const std::optional<tasks::BestRule>& rule) {
  FoldResult out{.fold = fold, .values = {}, .test = {}};
  engine::for_each_metric(metrics, [&](const std::string&, const json::Value& line) {
    if (auto test = values_in(line, "test_"); !test.empty()) out.test = std::move(test);
    auto values = values_in(line, "eval_");
    if (values.empty()) return;
    if (rule && !out.values.empty()) {
      const auto now = values.find(rule->metric), best = out.values.find(rule->metric);
      const bool better = now != values.end() && std::isfinite(now->second) &&
                          (best == out.values.end() || rule->better(now->second, best->second));
      if (!better) return;
    }
    out.values = std::move(values);
    out.step = line.find("step")->as_integer().value_or(0);
  });
  TESSERA_REQUIRE(!out.values.empty(),
                  Data,
                  fmt::format("the training of fold {} was never evaluated", fold),
                  "set eval.every to \"epoch\" or a number of steps that the training reaches");
  return out;
}

json::Value folds_json(const std::vector<FoldResult>& results,
                       const std::optional<tasks::BestRule>& rule) {
  json::Value out = json::Value::object(
      {{"folds", json::Value::integer(std::ssize(results))},
       {"evaluation", json::Value::string(rule ? "best " + rule->metric : "last")}});
  json::Value values = part_json(results, &FoldResult::values);
  for (auto& [key, value] : values.members())
    out[key] = std::move(value);
  if (has_test(results)) out["test"] = part_json(results, &FoldResult::test);
  return out;
}

std::vector<std::string> folds_table(const std::vector<FoldResult>& results,
                                     const std::optional<tasks::BestRule>& rule) {
  std::vector<std::string> out = {
      fmt::format("{} folds, each evaluated on the part that it did not train on ({})",
                  results.size(),
                  rule ? "the best evaluation by " + rule->metric : "the last evaluation")};
  append_table(results, &FoldResult::values, out);
  if (!has_test(results)) return out;
  out.emplace_back("data.test");
  append_table(results, &FoldResult::test, out);
  return out;
}

bool set_fold(json::Value& source, std::int64_t folds, std::int64_t fold) {
  const std::string why = "--folds";
  config::set_key(source, "data.folds", json::Value::integer(folds), why);
  config::set_key(source, "data.fold", json::Value::integer(fold), why);
  const json::Value* const eval = source.find("eval");
  const bool sets_every = eval == nullptr || (eval->is_object() && eval->find("every") == nullptr);
  if (sets_every) config::set_key(source, "eval.every", json::Value::string("epoch"), why);
  return sets_every;
}

int train_folds(const FoldsCommand& command,
                const std::function<int(const std::vector<std::string>& line)>& train) {
  if (command.dry_run) return train(line_of_fold(command, 1));
  Terminal terminal;
  std::vector<FoldResult> results;
  for (std::int64_t fold = 1; fold <= command.folds; ++fold) {
    if (!command.quiet && !command.as_json)
      terminal.line(fmt::format("fold {} of {}", fold, command.folds));
    const int code = train(line_of_fold(command, fold));
    if (code != kExitOk) return code;
    const std::filesystem::path metrics =
        command.dir / fmt::format("fold-{}", fold) / "metrics.jsonl";
    results.push_back(read_fold(files::read(metrics), fold, command.rule));
  }
  const json::Value all = folds_json(results, command.rule);
  files::write_atomic(command.dir / "folds.json", all.dump(2) + "\n");
  if (command.as_json) {
    terminal.data(all.dump());
    return kExitOk;
  }
  for (const std::string& line : folds_table(results, command.rule))
    terminal.line(line);
  return kExitOk;
}

}  // namespace tessera::cli
