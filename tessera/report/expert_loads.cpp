// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/expert_loads.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/report/svg.h"

namespace tessera::report {
namespace {

constexpr std::size_t kMostLayers = 4096, kMostExperts = 65536;
constexpr std::size_t kDrawnLayers = 128, kDrawnExperts = 512;
constexpr std::size_t kNamed = 8;  // experts that a sentence names

[[noreturn]] void refuse(const std::string& where, std::string_view what) {
  throw Error(Error::Kind::Format,
              fmt::format("{}: {}", where, what),
              "remove the file: a training writes it again");
}

const json::Value& member(const json::Value& object,
                          std::string_view key,
                          const std::string& where) {
  const json::Value* const value = object.is_object() ? object.find(key) : nullptr;
  if (value == nullptr) refuse(where, fmt::format("the key {} is missing", key));
  return *value;
}

std::int64_t number(const json::Value& value, const std::string& where) {
  const std::optional<std::int64_t> out = value.is_number() ? value.as_integer() : std::nullopt;
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  if (!out || *out < 0 || *out > kMost) refuse(where, "expected whole numbers from 0 to 2^53");
  return *out;
}

/// "3, 5 and 9", or the first ones "and 12 more".
std::string listed(const std::vector<std::size_t>& experts) {
  std::string out;
  for (std::size_t i = 0; i < std::min(experts.size(), kNamed); ++i)
    out += (out.empty() ? "" : ", ") + std::to_string(experts[i]);
  return experts.size() > kNamed ? out + fmt::format(" and {} more", experts.size() - kNamed) : out;
}

const char* ending(const std::vector<std::size_t>& experts) {
  return experts.size() == 1 ? "" : "s";
}

}  // namespace

std::int64_t LayerLoads::total() const {
  return std::accumulate(chosen.begin(), chosen.end(), std::int64_t{0});
}

double LayerLoads::unevenness() const {
  const std::int64_t all = total();
  if (all == 0) return 0.0;
  return static_cast<double>(*std::max_element(chosen.begin(), chosen.end())) /
         static_cast<double>(all) * static_cast<double>(chosen.size());
}

double LayerLoads::relative_entropy() const {
  const auto all = static_cast<double>(total());
  if (all == 0.0 || chosen.size() < 2) return 1.0;
  double sum = 0.0;
  for (const std::int64_t count : chosen) {
    const double share = static_cast<double>(count) / all;
    if (count > 0) sum -= share * std::log(share);
  }
  return sum / std::log(static_cast<double>(chosen.size()));
}

double LayerLoads::dropped_share() const {
  const std::int64_t all = total();
  return all == 0 ? 0.0 : static_cast<double>(dropped) / static_cast<double>(all);
}

void ExpertLoads::add(std::int64_t at, const std::vector<LayerLoads>& of_step) {
  step = at;
  ++steps;
  if (layers.empty()) {
    layers = of_step;
    return;
  }
  TESSERA_ASSERT(layers.size() == of_step.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    TESSERA_ASSERT(layers[l].chosen.size() == of_step[l].chosen.size());
    for (std::size_t e = 0; e < layers[l].chosen.size(); ++e)
      layers[l].chosen[e] += of_step[l].chosen[e];
    layers[l].dropped += of_step[l].dropped;
  }
}

json::Value json_of(const ExpertLoads& loads) {
  json::Value layers = json::Value::array();
  for (const LayerLoads& layer : loads.layers) {
    json::Value chosen = json::Value::array();
    for (const std::int64_t count : layer.chosen)
      chosen.push_back(json::Value::integer(count));
    layers.push_back(json::Value::object({{"name", json::Value::string(layer.layer)},
                                          {"chosen", std::move(chosen)},
                                          {"dropped", json::Value::integer(layer.dropped)}}));
  }
  return json::Value::object({{"step", json::Value::integer(loads.step)},
                              {"steps", json::Value::integer(loads.steps)},
                              {"layers", std::move(layers)}});
}

ExpertLoads expert_loads_of(const json::Value& value, const std::string& where) {
  ExpertLoads out = {.step = number(member(value, "step", where), where),
                     .steps = number(member(value, "steps", where), where),
                     .layers = {}};
  const json::Value& layers = member(value, "layers", where);
  if (!layers.is_array() || layers.items().size() > kMostLayers)
    refuse(where, fmt::format("expected a list of at most {} layers", kMostLayers));
  for (const json::Value& layer : layers.items()) {
    const json::Value &name = member(layer, "name", where),
                      &chosen = member(layer, "chosen", where);
    if (!name.is_string()) refuse(where, "the name of a layer is not a string");
    if (!chosen.is_array() || chosen.items().empty() || chosen.items().size() > kMostExperts)
      refuse(where, fmt::format("expected 1 to {} experts", kMostExperts));
    LayerLoads& to = out.layers.emplace_back();
    to.layer = name.as_string();
    std::int64_t all = 0;
    for (const json::Value& count : chosen.items()) {
      to.chosen.push_back(number(count, where));
      if (__builtin_add_overflow(all, to.chosen.back(), &all)) refuse(where, "numbers too large");
    }
    to.dropped = number(member(layer, "dropped", where), where);
  }
  return out;
}

ExpertLoads read_expert_loads(const std::filesystem::path& run) {
  const std::filesystem::path path = run / "experts.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  constexpr std::uintmax_t kMost = std::uintmax_t{64} << 20;
  if (std::filesystem::file_size(path, ignored) > kMost) refuse(path.string(), "it is too large");
  return expert_loads_of(json::parse_strict(files::read(path), path.string()), path.string());
}

std::string experts_plot(const ExpertLoads& loads) {
  constexpr double kTop = 56, kLetter = 7, kHeight = 18, kWhole = 640;
  const std::size_t rows = std::min(loads.layers.size(), kDrawnLayers);
  std::size_t longest = 0, widest = 1;
  for (std::size_t l = 0; l < rows; ++l) {
    longest = std::max(longest, std::min<std::size_t>(loads.layers[l].layer.size(), 24));
    widest = std::max(widest, std::min(loads.layers[l].chosen.size(), kDrawnExperts));
  }
  const double left = 24 + kLetter * static_cast<double>(longest);
  const double width = std::clamp(kWhole / static_cast<double>(widest), 2.0, 48.0);
  std::string out = svg_label(left,
                              20,
                              "start",
                              fmt::format("loads of experts (columns) by layer, steps {} to {}",
                                          std::max<std::int64_t>(1, loads.step - loads.steps + 1),
                                          loads.step));
  out += svg_label(left, 40, "start", "darker: more tokens; red: more than twice the mean");
  for (std::size_t l = 0; l < rows; ++l) {
    const LayerLoads& layer = loads.layers[l];
    const double y = kTop + kHeight * static_cast<double>(l);
    out += svg_label(left - 8, y + 13, "end", layer.layer.substr(0, 24));
    const double mean =
        static_cast<double>(layer.total()) / static_cast<double>(layer.chosen.size());
    for (std::size_t e = 0; e < std::min(layer.chosen.size(), kDrawnExperts); ++e) {
      const double load = mean == 0.0 ? 0.0 : static_cast<double>(layer.chosen[e]) / mean;
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" "
          "fill-opacity=\"{:.2f}\" stroke=\"#ccc\" stroke-width=\"0.5\"><title>{}, expert {}: {} "
          "choices, {:.2f} of the mean</title></rect>\n",
          left + width * static_cast<double>(e),
          y,
          width,
          kHeight,
          load > 2.0 ? "#c0392b" : "#1f5fa8",
          std::min(1.0, load / 2.0),
          svg_escaped(layer.layer),
          e,
          layer.chosen[e],
          load);
    }
  }
  return svg_picture(left + width * static_cast<double>(widest) + 24,
                     kTop + kHeight * static_cast<double>(rows) + 24,
                     out);
}

std::vector<std::string> expert_findings(const ExpertLoads& loads) {
  constexpr double kEnough = 16, kOverloaded = 3, kDropped = 0.1;
  std::vector<std::string> out;
  const std::string when = fmt::format(
      "steps {} to {}", std::max<std::int64_t>(1, loads.step - loads.steps + 1), loads.step);
  for (const LayerLoads& layer : loads.layers) {
    const double mean =
        static_cast<double>(layer.total()) / static_cast<double>(layer.chosen.size());
    if (mean < kEnough) continue;
    std::vector<std::size_t> dead, overloaded;
    for (std::size_t e = 0; e < layer.chosen.size(); ++e) {
      if (layer.chosen[e] == 0) dead.push_back(e);
      if (static_cast<double>(layer.chosen[e]) > kOverloaded * mean) overloaded.push_back(e);
    }
    if (!dead.empty())
      out.push_back(
          fmt::format("{}: expert{} {} of {} got no token in {}: raise "
                      "model.moe.losses.balance, or set model.moe.router.bias_update",
                      layer.layer,
                      ending(dead),
                      listed(dead),
                      layer.chosen.size(),
                      when));
    if (!overloaded.empty())
      out.push_back(
          fmt::format("{}: expert{} {} of {} got more than {} times the mean number of "
                      "tokens in {}, at most {:.1f} times",
                      layer.layer,
                      ending(overloaded),
                      listed(overloaded),
                      layer.chosen.size(),
                      kOverloaded,
                      when,
                      layer.unevenness()));
    if (layer.dropped_share() > kDropped)
      out.push_back(
          fmt::format("{}: {:.0f}% of the choices were dropped in {}: raise "
                      "model.moe.capacity or the balance of the experts",
                      layer.layer,
                      100 * layer.dropped_share(),
                      when));
  }
  return out;
}

}  // namespace tessera::report
