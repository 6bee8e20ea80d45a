// SPDX-License-Identifier: Apache-2.0
// tessera compare: compares two runs bit by bit, except for times.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/checkpoint_path.h"
#include "tessera/cli/command.h"
#include "tessera/cli/run_differences.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/json.h"
#include "tessera/engine/metric_lines.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kExitDifferent = 1;
using Difference = std::optional<std::string>;

bool is_timed(const std::string& key) {
  return key == "time" || key.ends_with("_ms") || key.ends_with("_per_s") ||
         key.ends_with("_waited") || key.starts_with("mem_") || key.starts_with("comm_") ||
         key.starts_with("disk_") || key.starts_with("early_") || key == "matrix_share";
}

std::vector<json::Value> read_metrics(const fs::path& path) {
  std::vector<json::Value> out;
  engine::for_each_metric(
      files::read(path), [&](const std::string&, const json::Value& line) { out.push_back(line); });
  return out;
}

std::string shown(const json::Value* value) {
  return value == nullptr ? "absent" : value->dump();
}

/// Compares the members of two objects, and of the objects in them; `of` is the path of these.
Difference compare_lines(const json::Value& a, const json::Value& b, const std::string& of = "") {
  std::vector<std::string> keys;
  for (const auto& [key, value] : a.members())
    keys.push_back(key);
  for (const auto& [key, value] : b.members()) {
    if (a.find(key) == nullptr) keys.push_back(key);
  }
  for (const std::string& key : keys) {
    if (is_timed(key)) continue;
    const json::Value *in_a = a.find(key), *in_b = b.find(key);
    if (in_a != nullptr && in_b != nullptr && in_a->is_object() && in_b->is_object()) {
      if (auto differs = compare_lines(*in_a, *in_b, of + key + ".")) return differs;
      continue;
    }
    if (in_a == nullptr || in_b == nullptr || !(*in_a == *in_b))
      return fmt::format("{}{} is {} in A and {} in B", of, key, shown(in_a), shown(in_b));
  }
  return std::nullopt;
}

std::string place(std::size_t line, const json::Value& value) {
  const json::Value* step = value.find("step");
  return fmt::format("metrics line {}{}",
                     line + 1,
                     step == nullptr ? "" : fmt::format(" (step {})", step->dump()));
}

Difference compare_metrics(const fs::path& a, const fs::path& b) {
  const auto in_a = read_metrics(a), in_b = read_metrics(b);
  for (std::size_t i = 0; i < std::min(in_a.size(), in_b.size()); ++i) {
    if (const auto differs = compare_lines(in_a[i], in_b[i]))
      return place(i, in_a[i]) + ": " + *differs;
  }
  if (in_a.size() == in_b.size()) return std::nullopt;
  const bool longer_a = in_a.size() > in_b.size();
  const std::size_t first = std::min(in_a.size(), in_b.size());
  return fmt::format("{} is only in {}: A has {} lines and B {}",
                     place(first, (longer_a ? in_a : in_b)[first]),
                     longer_a ? "A" : "B",
                     in_a.size(),
                     in_b.size());
}

/// Digest lines by tensor. A name cannot contain the last three words of a line.
std::map<std::string, std::string> by_tensor(const std::vector<std::string>& lines) {
  std::map<std::string, std::string> out;
  for (const std::string& line : lines) {
    std::size_t cut = line.size();
    for (int word = 0; word < 3; ++word)
      cut = line.rfind(' ', cut - 1);
    out[line.substr(0, cut)] = line.substr(cut + 1);
  }
  return out;
}

Difference compare_checkpoints(const fs::path& a, const fs::path& b) {
  const checkpoint::Checkpoint in_a(a), in_b(b);
  const auto number = [](const char* what, std::int64_t x, std::int64_t y) -> Difference {
    if (x == y) return std::nullopt;
    return fmt::format("the newest checkpoint: {} is {} in A and {} in B", what, x, y);
  };
  if (auto differs = number("step", in_a.meta().step, in_b.meta().step)) return differs;
  if (auto differs = number("samples", in_a.meta().samples, in_b.meta().samples)) return differs;
  if (auto differs = number("tokens", in_a.meta().tokens, in_b.meta().tokens)) return differs;
  const auto lines_a = in_a.digest(), lines_b = in_b.digest();
  const auto tensors_a = by_tensor(lines_a), tensors_b = by_tensor(lines_b);
  for (const auto& lines : {lines_a, lines_b}) {
    for (const auto& [name, rest] : by_tensor(lines)) {
      const auto at_a = tensors_a.find(name), at_b = tensors_b.find(name);
      if (at_a == tensors_a.end() || at_b == tensors_b.end()) {
        return fmt::format("tensor {} is only in {}", name, at_a == tensors_a.end() ? "B" : "A");
      }
      if (at_a->second != at_b->second) {
        return fmt::format("tensor {} at step {} is {} in A and {} in B",
                           name,
                           in_a.meta().step,
                           at_a->second,
                           at_b->second);
      }
    }
  }
  return std::nullopt;
}

/// The two sides of a comparison.
struct Sides {
  bool metrics = false, checkpoints = false;
};

/// Finds the first difference, and counts what was compared.
Difference compare_runs(const fs::path& a, const fs::path& b, Sides& sides) {
  const auto points_a = checkpoints_at(a), points_b = checkpoints_at(b);
  const fs::path metrics_a = a / "metrics.jsonl", metrics_b = b / "metrics.jsonl";
  const bool has_a = fs::exists(metrics_a), has_b = fs::exists(metrics_b);
  TESSERA_REQUIRE(
      has_a || has_b || !points_a.empty() || !points_b.empty(),
      Format,
      fmt::format(
          "neither {} nor {} holds metrics or a complete checkpoint", a.string(), b.string()),
      "name two run folders or two checkpoints");
  for (const fs::path& one : {a, b}) {
    // A run that has just begun has a status alone.
    TESSERA_REQUIRE(fs::exists(one / "metrics.jsonl") || fs::exists(one / "status.json") ||
                        !(one == a ? points_a : points_b).empty(),
                    Format,
                    one.string() + " is neither a run nor a checkpoint",
                    "name a run folder or one of its checkpoints/step-NNNNNNNN");
  }
  // A checkpoint next to a run has no metrics; that is not a difference.
  const bool runs = !checkpoint::is_checkpoint(a) && !checkpoint::is_checkpoint(b);
  if (has_a && has_b) {
    sides.metrics = true;
    if (auto differs = compare_metrics(metrics_a, metrics_b)) return differs;
  } else if (runs && has_a != has_b) {
    return fmt::format("only {} has metrics", has_a ? "A" : "B");
  }
  if (points_a.empty() != points_b.empty()) {
    return fmt::format("only {} has a complete checkpoint", points_a.empty() ? "B" : "A");
  }
  if (points_a.empty()) return std::nullopt;
  sides.checkpoints = true;
  return compare_checkpoints(points_a.back(), points_b.back());
}

int compare(const std::vector<std::string>& line) {
  std::string a, b;
  Common common;
  Arguments arguments("compare",
                      "Compares two runs bit by bit: metrics except for those that depend on time, "
                      "then every tensor "
                      "of "
                      "their newest checkpoints. If they differ, prints the first difference, the "
                      "keys of the configurations that differ, and the losses side by side with "
                      "their largest and final difference, and exits with code 1.",
                      {"tessera compare runs/one-rank runs/two-ranks",
                       "tessera compare runs/a/checkpoints/step-00000100 runs/b"});
  arguments.positional("A", &a, "A run or checkpoint");
  arguments.positional("B", &b, "Another");
  arguments.common(common, /*has_json=*/true);
  if (!arguments.parse(line)) return kExitOk;
  Sides sides;
  const Difference differs = compare_runs(a, b, sides);
  if (common.json) {
    json::Value out = json::Value::object({{"equal", json::Value::boolean(!differs)}});
    if (differs) {
      out["difference"] = json::Value::string(*differs);
      const json::Value more = as_json(run_differences(a, b));
      for (const auto& [key, value] : more.members())
        out[key] = value;
    }
    std::printf("%s\n", out.dump().c_str());
  } else if (differs && !common.quiet) {
    Terminal terminal;
    terminal.line("different: " + *differs);
    terminal.line("  A: " + a);
    terminal.line("  B: " + b);
    for (const std::string& one : as_lines(run_differences(a, b)))
      terminal.line(one);
  } else if (!differs && !common.quiet) {
    std::printf("equal: %s%s%s\n",
                sides.metrics ? "metrics" : "",
                sides.metrics && sides.checkpoints ? " and " : "",
                sides.checkpoints ? "every tensor of the newest checkpoints" : "");
  }
  return differs ? kExitDifferent : kExitOk;
}

TESSERA_COMMAND("compare", "check whether two runs are bit-identical", compare);

}  // namespace
}  // namespace tessera::cli
