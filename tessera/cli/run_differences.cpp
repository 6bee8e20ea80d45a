// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/run_differences.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/files.h"
#include "tessera/engine/metric_lines.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "run.dir";
constexpr std::size_t kShownKeys = 40, kShownSteps = 10;

std::map<std::string, json::Value> configuration_of(const fs::path& run) {
  std::map<std::string, json::Value> out;
  std::error_code failure;
  const fs::path path = run / "config.json";
  if (!fs::is_regular_file(path, failure)) return out;
  for (auto& [key, value] : json::leaves(json::parse_strict(files::read(path), path.string()))) {
    if (key != kFolder) out[key] = std::move(value);
  }
  return out;
}

/// The losses of a run by step; a loss that is not finite is stored as null.
struct Losses {
  std::map<std::int64_t, double> train, eval;
};

Losses losses_of(const fs::path& run) {
  Losses out;
  std::error_code failure;
  const fs::path path = run / "metrics.jsonl";
  if (!fs::is_regular_file(path, failure)) return out;
  engine::for_each_metric(files::read(path), [&](const std::string&, const json::Value& line) {
    const std::int64_t step = line.find("step")->as_integer().value_or(0);
    for (const auto& [key, losses] :
         {std::pair("loss", &out.train), std::pair("eval_loss", &out.eval)}) {
      const json::Value* const loss = line.find(key);
      if (loss == nullptr) continue;
      (*losses)[step] =
          loss->is_number() ? loss->as_double() : std::numeric_limits<double>::quiet_NaN();
    }
  });
  return out;
}

std::vector<LossPair> pairs_of(const std::map<std::int64_t, double>& a,
                               const std::map<std::int64_t, double>& b) {
  std::vector<LossPair> out;
  for (const auto& [step, loss] : a) {
    const auto other = b.find(step);
    if (other != b.end()) out.push_back({step, loss, other->second});
  }
  return out;
}

double distance(const LossPair& pair) {
  const double out = std::abs(pair.b - pair.a);
  if (std::isnan(pair.a) && std::isnan(pair.b)) return 0.0;
  return std::isfinite(out) ? out : std::numeric_limits<double>::infinity();
}

std::string loss_text(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{:.6f}", value);
}

std::string loss_row(const std::string& name, const LossPair& pair) {
  return fmt::format(
      "  {:<12} {:>12} {:>12} {:>12}",
      name,
      loss_text(pair.a),
      loss_text(pair.b),
      std::isfinite(pair.b - pair.a) ? fmt::format("{:+.2e}", pair.b - pair.a) : std::string("-"));
}

std::string step_name(const LossPair& pair) {
  return fmt::format("step {}", pair.step);
}

void add_losses(const std::string& title,
                const std::vector<LossPair>& pairs,
                std::vector<std::string>& out) {
  if (pairs.empty()) return;
  out.push_back(fmt::format("{:<14} {:>12} {:>12} {:>12}", title, "A", "B", "B - A"));
  const std::size_t every = (pairs.size() + kShownSteps - 1) / kShownSteps;
  for (std::size_t i = 0; i + 1 < pairs.size(); i += every)
    out.push_back(loss_row(step_name(pairs[i]), pairs[i]));
  out.push_back(loss_row(step_name(pairs.back()), pairs.back()));
  const LossPair largest = *largest_difference(pairs);
  out.push_back(
      fmt::format("  largest difference {:.2e} at step {}, final difference {:.2e} at step {}",
                  distance(largest),
                  largest.step,
                  distance(pairs.back()),
                  pairs.back().step));
}

std::string value_text(const json::Value& value) {
  return value.is_null() ? "-" : value.dump();
}

json::Value pair_json(const LossPair& pair) {
  return json::Value::object({{"step", json::Value::integer(pair.step)},
                              {"a", json::Value::number(pair.a)},
                              {"b", json::Value::number(pair.b)}});
}

json::Value losses_json(const std::vector<LossPair>& pairs) {
  json::Value out = json::Value::object(
      {{"steps", json::Value::integer(static_cast<std::int64_t>(pairs.size()))}});
  if (pairs.empty()) return out;
  out["largest"] = pair_json(*largest_difference(pairs));
  out["final"] = pair_json(pairs.back());
  return out;
}

}  // namespace

RunDifferences run_differences(const fs::path& a, const fs::path& b) {
  RunDifferences out;
  const auto in_a = configuration_of(a), in_b = configuration_of(b);
  if (!in_a.empty() && !in_b.empty()) {
    std::map<std::string, DifferentKey> keys;
    for (const auto& [path, value] : in_a)
      keys[path].a = value;
    for (const auto& [path, value] : in_b)
      keys[path].b = value;
    for (auto& [path, key] : keys) {
      key.path = path;
      if (!(key.a == key.b)) out.keys.push_back(std::move(key));
    }
  }
  const Losses losses_a = losses_of(a), losses_b = losses_of(b);
  out.train = pairs_of(losses_a.train, losses_b.train);
  out.eval = pairs_of(losses_a.eval, losses_b.eval);
  return out;
}

std::optional<LossPair> largest_difference(const std::vector<LossPair>& pairs) {
  const auto found =
      std::max_element(pairs.begin(), pairs.end(), [](const LossPair& x, const LossPair& y) {
        return distance(x) < distance(y);
      });
  return found == pairs.end() ? std::nullopt : std::optional(*found);
}

std::vector<std::string> as_lines(const RunDifferences& differences) {
  std::vector<std::string> out;
  std::size_t width = 0;
  for (const DifferentKey& key : differences.keys)
    width = std::max(width, key.path.size());
  if (!differences.keys.empty()) out.emplace_back("configuration");
  for (const DifferentKey& key : differences.keys) {
    if (out.size() > kShownKeys) {
      out.push_back(fmt::format("  and {} more", differences.keys.size() - kShownKeys));
      break;
    }
    out.push_back(fmt::format(
        "  {:<{}}  {} in A, {} in B", key.path, width, value_text(key.a), value_text(key.b)));
  }
  add_losses("loss", differences.train, out);
  add_losses("held out", differences.eval, out);
  return out;
}

json::Value as_json(const RunDifferences& differences) {
  json::Value keys = json::Value::array();
  for (const DifferentKey& key : differences.keys) {
    keys.items().push_back(
        json::Value::object({{"key", json::Value::string(key.path)}, {"a", key.a}, {"b", key.b}}));
  }
  return json::Value::object({{"configuration", std::move(keys)},
                              {"loss", losses_json(differences.train)},
                              {"eval_loss", losses_json(differences.eval)}});
}

}  // namespace tessera::cli
