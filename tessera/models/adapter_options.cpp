// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/adapter_options.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/text/tokenizers/pattern.h"

namespace tessera::models {
namespace {

constexpr double kMostRank = 65536;

/// True if the expression matches all of `text`.
bool matches_all(const std::string& expression, const std::string& text) {
  text::tokenizers::Ranges found;
  text::tokenizers::regex_pattern("\\A(?:" + expression + ")\\z")->find(text, found);
  return std::any_of(found.begin(), found.end(), [&](const auto& range) {
    return range.first == 0 && range.second == text.size();
  });
}

void check_expression(const std::string& key, const std::string& expression) {
  try {
    (void)text::tokenizers::regex_pattern("\\A(?:" + expression + ")\\z");
  } catch (const Error&) {
    throw Error(
        Error::Kind::Config,
        fmt::format("adapter.{}: \"{}\" is not a valid regular expression", key, expression),
        "escape its special characters with two backslashes, or write a list of names");
  }
}

std::vector<std::string> names_in(const std::string& key, const json::Value& value) {
  std::vector<std::string> out;
  for (const json::Value& item : value.items()) {
    TESSERA_REQUIRE(item.is_string() && !item.as_string().empty(),
                    Config,
                    fmt::format("adapter.{}: expected names, found {}", key, item.dump()),
                    "write a list of strings, such as [\"q_proj\", \"v_proj\"]");
    out.push_back(item.as_string());
  }
  return out;
}

/// A string is a regular expression; a list contains names.
void read_names(const std::string& key,
                const json::Value& value,
                std::string& expression,
                std::vector<std::string>& names) {
  if (value.is_string()) {
    expression = value.as_string();
    check_expression(key, expression);
  } else if (value.is_array()) {
    names = names_in(key, value);
  } else {
    TESSERA_REQUIRE(
        value.is_null(),
        Config,
        fmt::format(
            "adapter.{}: expected a string or a list of names, found {}", key, value.type_name()),
        "write a list of strings, such as [\"q_proj\", \"v_proj\"]");
  }
}

std::vector<std::pair<std::string, double>> numbers_in(const std::string& key,
                                                       const json::Value& value) {
  std::vector<std::pair<std::string, double>> out;
  if (value.is_null()) return out;
  TESSERA_REQUIRE(value.is_object(),
                  Config,
                  fmt::format("adapter.{}: expected an object, found {}", key, value.type_name()),
                  "write names or regular expressions with a number each, {\"q_proj\": 16}");
  for (const auto& [expression, number] : value.members()) {
    TESSERA_REQUIRE(
        number.is_number() && number.as_double() > 0,
        Config,
        fmt::format(
            "adapter.{}.{}: expected a number above 0, found {}", key, expression, number.dump()),
        "write a number");
    check_expression(key, "(?:.*\\.)?(?:" + expression + ")");
    out.emplace_back(expression, number.as_double());
  }
  return out;
}

std::optional<double> number_of(const std::vector<std::pair<std::string, double>>& numbers,
                                const std::string& module) {
  for (const auto& [expression, number] : numbers) {
    if (matches_all("(?:.*\\.)?(?:" + expression + ")", module)) return number;
  }
  return std::nullopt;
}

/// The number after the last ".`list`." of a name; if `list` is empty, after the last component
/// that is preceded by a list's name and followed by a number.
std::optional<std::int64_t> layer_of(const std::string& module, const std::string& list) {
  std::optional<std::int64_t> out;
  std::vector<std::string> parts;
  std::string part;
  for (const char c : module + ".") {
    if (c != '.') {
      part += c;
      continue;
    }
    parts.push_back(std::exchange(part, {}));
  }
  // There must be a component before the list's name and one after the number.
  for (std::size_t i = 2; i + 1 < parts.size(); ++i) {
    const bool number =
        !parts[i].empty() && parts[i].size() < 10 &&
        std::all_of(parts[i].begin(), parts[i].end(), [](unsigned char c) { return isdigit(c); });
    if (number && (list.empty() || parts[i - 1] == list)) out = std::stoll(parts[i]);
  }
  return out;
}

}  // namespace

void AdapterOptions::describe(config::Fields& f) {
  f.field("type",
          type,
          {.text = "Low-rank adapter that is trained in place of the weights, which stay as they "
                   "are: lora, rslora (scaled by alpha / sqrt(r)) or dora (with a trained "
                   "magnitude).",
           .choices = {"lora", "rslora", "dora"},
           .default_text = "none"});
  f.field("r", r, {.text = "Rank of the adapters.", .min = 1, .max = kMostRank});
  f.field("alpha",
          alpha,
          {.text = "Scale of the adapters: the update is multiplied by alpha / r.",
           .min = 0,
           .max = 1e9,
           .above_min = true});
  f.field("dropout",
          dropout,
          {.text = "Dropout probability on an adapter's input.", .min = 0, .max = 0.999});
  f.field("targets",
          targets,
          {.text = "Layers that get an adapter, by their Hugging Face names: \"all-linear\" (all "
                   "but the head, routers and experts), a list of names or their ends, or a "
                   "regular expression that matches the whole name.",
           .default_text = "\"all-linear\", or none with target_parameters",
           .type = "string or list of strings"});
  f.field("exclude",
          exclude,
          {.text = "Layers that get no adapter although targets names them, in the same notation.",
           .default_text = "none",
           .type = "string or list of strings"});
  f.field(
      "target_parameters",
      target_parameters,
      {.text = "Stacked matrices of experts that get an adapter, by their names in transformers "
               "5 or the ends of these: \"mlp.experts.gate_up_proj\". PEFT has the same key, and "
               "like there nothing else gets an adapter unless targets is given. Experts with a "
               "module each can be meant by targets instead.",
       .default_text = "none"});
  f.field("rank_pattern",
          rank_pattern,
          {.text = "Ranks of single layers, by name or regular expression: {\"v_proj\": 16}.",
           .default_text = "{}",
           .type = "object"});
  f.field("alpha_pattern",
          alpha_pattern,
          {.text = "Alphas of single layers, in the same notation.",
           .default_text = "{}",
           .type = "object"});
  f.field("layers",
          layers,
          {.text = "Numbers of the layers that get adapters, from 0.",
           .default_text = "all",
           .type = "integer or list of integers"});
  f.field("layers_pattern",
          layers_pattern,
          {.text = "Module name before a layer's number, such as \"h\" or \"layers\".",
           .default_text = "any"});
  f.field(
      "modules_to_save",
      modules_to_save,
      {.text = "Modules that are trained as a whole and saved with the adapter, such as lm_head.",
       .default_text = "the head of a classifier or a reward model"});
  f.choice(
      "bias",
      bias,
      kAdapterBiases,
      {.text = "Biases that are also trained: none, all, or those of adapted layers (lora_only)."});
  f.field("rank_stabilized",
          rank_stabilized,
          {.text = "Scale by alpha / sqrt(r), as rslora does; for dora as well."});
  f.field(
      "lr_ratio",
      lr_ratio,
      {.text = "Ratio of the learning rate of the matrices B to that of the matrices A (LoRA+).",
       .min = 0,
       .max = 1e6,
       .above_min = true,
       .default_text = "1"});
  f.field("from",
          from,
          {.text = "PEFT folder (adapter_config.json) whose adapter is trained further.",
           .default_text = "none"});
  f.choice("quantize_base",
           quantize_base,
           kQuantizedBases,
           {.text = "Storage type of the frozen matrices of linear layers (QLoRA): nf4 (4 bits, "
                    "blocks of 64), int8 (one scale per row), or none (the run's type)."});
  f.field("double_quantization",
          double_quantization,
          {.text = "With nf4: store the scales of blocks in 8 bits, which takes 4.13 bits per "
                   "weight instead of 4.5."});
}

double AdapterOptions::scale(std::int64_t rank, double own_alpha) const {
  const auto by = static_cast<double>(rank);
  return own_alpha / (rank_stabilized || type == "rslora" ? std::sqrt(by) : by);
}

bool means_module(std::string_view written, std::string_view module) {
  return module == written || (module.size() > written.size() && module.ends_with(written) &&
                               module[module.size() - written.size() - 1] == '.');
}

AdapterRules::AdapterRules(const AdapterOptions& options) : options_(options) {
  const json::Value& targets = options.targets;
  // target_parameters without targets adapt no layers, which is what PEFT does.
  all_linear_ = (targets.is_null() && options.target_parameters.empty()) ||
                (targets.is_string() && targets.as_string() == "all-linear") ||
                (targets.is_array() && targets.items().size() == 1 &&
                 targets.items()[0].is_string() && targets.items()[0].as_string() == "all-linear");
  if (!all_linear_) read_names("targets", targets, expression_, names_);
  read_names("exclude", options.exclude, excluded_expression_, excluded_names_);
  ranks_ = numbers_in("rank_pattern", options.rank_pattern);
  alphas_ = numbers_in("alpha_pattern", options.alpha_pattern);
  for (const auto& [expression, rank] : ranks_) {
    TESSERA_REQUIRE(rank >= 1 && rank <= kMostRank && rank == std::floor(rank),
                    Config,
                    fmt::format("adapter.rank_pattern.{}: {} is not a rank", expression, rank),
                    "write a whole number from 1 on");
  }
  if (options.layers.is_null()) return;
  by_layer_ = true;
  TESSERA_REQUIRE(expression_.empty(),
                  Config,
                  "adapter.layers needs adapter.targets as a list of names",
                  "say the layers in the regular expression");
  const auto add = [&](const json::Value& value) {
    const auto number = value.is_number() ? value.as_integer() : std::nullopt;
    TESSERA_REQUIRE(number && *number >= 0,
                    Config,
                    fmt::format("adapter.layers: {} is not a number of a layer", value.dump()),
                    "write whole numbers from 0 on");
    layers_.push_back(*number);
  };
  if (options.layers.is_array()) {
    for (const json::Value& value : options.layers.items())
      add(value);
  } else {
    add(options.layers);
  }
}

bool AdapterRules::in_layers(const std::string& module) const {
  if (!by_layer_) return true;
  const auto chosen = [&](const std::string& list) {
    const auto layer = layer_of(module, list);
    return layer && std::find(layers_.begin(), layers_.end(), *layer) != layers_.end();
  };
  const std::vector<std::string>& lists = options_.layers_pattern;
  return lists.empty() ? chosen("") : std::any_of(lists.begin(), lists.end(), chosen);
}

bool AdapterRules::targets(const std::string& module, bool everything) const {
  const auto meant = [&](const std::string& expression, const Names& names) {
    if (!expression.empty()) return matches_all(expression, module);
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return means_module(name, module);
    });
  };
  if (meant(excluded_expression_, excluded_names_)) return false;
  return (all_linear_ ? everything : meant(expression_, names_)) && in_layers(module);
}

bool AdapterRules::targets_parameter(const std::string& name) const {
  const std::vector<std::string>& meant = options_.target_parameters;
  return std::any_of(meant.begin(),
                     meant.end(),
                     [&](const std::string& written) { return means_module(written, name); }) &&
         in_layers(name);
}

std::int64_t AdapterRules::rank(const std::string& module) const {
  const auto own = number_of(ranks_, module);
  return own ? static_cast<std::int64_t>(*own) : options_.r;
}

double AdapterRules::alpha(const std::string& module) const {
  return number_of(alphas_, module).value_or(options_.alpha);
}

std::vector<std::string> AdapterRules::unused(const std::vector<std::string>& adapted) const {
  std::vector<std::string> out;
  const auto add = [&](const char* key, const std::string& said, const auto& fits) {
    if (std::none_of(adapted.begin(), adapted.end(), fits))
      out.push_back(fmt::format("{} {}", key, said));
  };
  for (const std::string& name : names_) {
    add("targets", fmt::format("\"{}\"", name), [&](const std::string& module) {
      return means_module(name, module);
    });
  }
  for (const auto& [key, numbers] :
       {std::pair{"rank_pattern", &ranks_}, std::pair{"alpha_pattern", &alphas_}}) {
    for (const auto& one : *numbers) {
      add(key, fmt::format("\"{}\"", one.first), [&](const std::string& module) {
        return number_of({one}, module).has_value();
      });
    }
  }
  for (const std::int64_t layer : layers_) {
    add("layers", fmt::format("{}", layer), [&](const std::string& module) {
      const std::vector<std::string>& lists = options_.layers_pattern;
      const auto in = [&](const std::string& list) { return layer_of(module, list) == layer; };
      return lists.empty() ? in("") : std::any_of(lists.begin(), lists.end(), in);
    });
  }
  return out;
}

std::vector<std::string> AdapterRules::unused_parameters(
    const std::vector<std::string>& parameters) const {
  std::vector<std::string> out;
  for (const std::string& name : options_.target_parameters) {
    if (std::none_of(parameters.begin(), parameters.end(), [&](const std::string& one) {
          return means_module(name, one);
        }))
      out.push_back(name);
  }
  return out;
}

}  // namespace tessera::models
