// SPDX-License-Identifier: Apache-2.0
// The files of a plain training loop: model_000005.pth and optimizer_000005.pth, the state_dicts of
// a module and of torch's optimizer.
#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/foreign_write.h"
#include "tessera/interop/torch/file.h"
#include "tessera/interop/torch/value.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBoth = "keep model_N.pth and optimizer_N.pth of one step together";
constexpr const char* kAlone =
    "for the weights alone copy the model's file as pytorch_model.bin into a folder with its "
    "config.json: model.from";

/// The step in "model_000005.pth".
std::optional<std::int64_t> step_in(const fs::path& path) {
  static const std::regex form("model_(\\d{1,15})\\.(?:pth|pt)");
  std::smatch match;
  const std::string name = path.filename().string();
  if (!std::regex_match(name, match, form)) return std::nullopt;
  return std::stoll(match[1].str());
}

fs::path optimizer_beside(const fs::path& model) {
  return model.parent_path() / ("optimizer" + model.filename().string().substr(5));
}

/// The model's file at `path`: itself, or the newest in a folder.
std::optional<fs::path> find_model_file(const fs::path& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) {
    const bool pair = step_in(path).has_value() && fs::is_regular_file(path, failed) &&
                      fs::is_regular_file(optimizer_beside(path), failed);
    return pair ? std::optional(path) : std::nullopt;
  }
  std::optional<fs::path> newest;
  for (const auto& entry : fs::directory_iterator(path, failed)) {
    if (!step_in(entry.path()) || !fs::is_regular_file(optimizer_beside(entry.path()), failed))
      continue;
    if (!newest || *step_in(entry.path()) > *step_in(*newest)) newest = entry.path();
  }
  return newest;
}

bool recognises(const fs::path& path) {
  return find_model_file(path).has_value();
}

/// Adds weights in the order of the module's parameters: each storage once, no buffers.
void add_weights(Foreign& out, const std::vector<Weight>& tensors) {
  std::vector<const Weight*> taken;
  for (const Weight& weight : tensors) {
    if (is_stored_buffer(weight.name)) continue;
    const auto twin = std::find_if(taken.begin(), taken.end(), [&](const Weight* other) {
      return weight.numel() > 0 && weight.same_storage(*other);
    });
    if (twin != taken.end()) {
      out.weights[static_cast<std::size_t>(twin - taken.begin())].aliases.push_back(weight.name);
      continue;
    }
    taken.push_back(&weight);
    out.weights.push_back(stream(weight, weight.name));
  }
}

/// The parameter numbers, group by group, as the optimizer enumerates them.
std::vector<std::int64_t> order_of(const json::Value& values, const fs::path& file) {
  std::vector<std::int64_t> out;
  const json::Value* groups = at_path(values, "param_groups");
  TESSERA_REQUIRE(groups != nullptr && groups->is_array(),
                  Format,
                  file.string() + ": is not a state_dict of an optimizer",
                  kBoth);
  for (const json::Value& group : groups->items()) {
    const json::Value* params = group.is_object() ? group.find("params") : nullptr;
    for (std::size_t i = 0; params != nullptr && params->is_array() && i < params->items().size();
         ++i)
      out.push_back(params->items()[i].is_number() ? params->items()[i].as_integer().value_or(-1)
                                                   : -1);
  }
  return out;
}

constexpr std::array<const char*, 7> kStates = {
    "exp_avg", "exp_avg_sq", "momentum_buffer", "sum", "square_avg", "grad_avg", "exp_inf"};
/// States that follow from the update count and the hyperparameters: NAdam's product of momenta.
constexpr std::array<std::string_view, 2> kRecomputed = {"step", "mu_product"};

/// Refuses optimizer state and options that would be lost silently.
void refuse_others(const TorchContents& optimizer, const fs::path& file) {
  const auto refuse = [&](const std::string& what) {
    throw Error(Error::Kind::Unsupported, fmt::format("{}: {}", file.string(), what), kAlone);
  };
  for (const char* variant : {"amsgrad", "maximize"}) {
    const json::Value* on = at_path(optimizer.values, std::string("param_groups.0.") + variant);
    if (on != nullptr && on->is_bool() && on->as_bool())
      refuse(fmt::format("its optimizer has {}, which none here does", variant));
  }
  const json::Value* states = at_path(optimizer.values, "state");
  if (states == nullptr || !states->is_object()) return;
  for (const auto& [number, state] : states->members()) {
    for (std::size_t i = 0; state.is_object() && i < state.members().size(); ++i) {
      const std::string& name = state.members()[i].first;
      if (std::find(kRecomputed.begin(), kRecomputed.end(), name) == kRecomputed.end() &&
          std::find(kStates.begin(), kStates.end(), name) == kStates.end()) {
        refuse(fmt::format("its optimizer keeps {}, which none here does",
                           checkpoint::JsonCursor::shown(name)));
      }
    }
  }
}

void add_state(Foreign& out, const TorchContents& optimizer, const fs::path& file) {
  const auto order = order_of(optimizer.values, file);
  // Several groups (decayed and not) change the order of the parameters, which is then lost.
  TESSERA_REQUIRE(at_path(optimizer.values, "param_groups")->items().size() == 1,
                  Unsupported,
                  fmt::format("{}: has several groups of parameters, whose names it does not keep",
                              file.string()),
                  kAlone);
  TESSERA_REQUIRE(order.size() == out.weights.size(),
                  Format,
                  fmt::format("{}: is of {} parameters, and the model has {}",
                              file.string(),
                              order.size(),
                              out.weights.size()),
                  kBoth);
  refuse_others(optimizer, file);
  const Named tensors(optimizer.tensors);
  for (const char* name : kStates) {
    std::vector<checkpoint::StreamedTensor> state;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Weight* found = tensors.find(fmt::format("state.{}.{}", order[i], name));
      if (found == nullptr) continue;
      TESSERA_REQUIRE(
          found->shape == out.weights[i].shape,
          Format,
          fmt::format(
              "{}: {} has another shape than {}", file.string(), found->name, out.weights[i].name),
          kBoth);
      state.push_back(stream(*found, out.weights[i].name));
    }
    if (!state.empty()) out.state.emplace(name, std::move(state));
  }
}

/// The number of updates, which all parameters with a state share; nothing if none has one.
std::optional<std::int64_t> updates_of(const Foreign& training,
                                       const TorchContents& optimizer,
                                       const fs::path& file) {
  const auto order = order_of(optimizer.values, file);
  std::map<std::string, std::string> names;
  for (std::size_t i = 0; i < order.size(); ++i)
    names.emplace(std::to_string(order[i]), training.weights[i].name);
  const UpdateCounts counts =
      counts_in(Named(optimizer.tensors), optimizer.values, "state", names, file);
  TESSERA_REQUIRE(counts.difference().empty(),
                  Unsupported,
                  fmt::format("{}: of its optimizer's state {}: a training goes on from one count",
                              file.string(),
                              counts.difference()),
                  kAlone);
  return counts.first();
}

/// The rule of torch, inferred from its states and its group, because the file does not name it.
/// Only Adam's group has amsgrad; a file of an older torch, without decoupled_weight_decay, does
/// not distinguish Adam from AdamW.
std::optional<std::string> type_of(const json::Value& values) {
  const auto in_group = [&](const char* key) {
    return at_path(values, std::string("param_groups.0.") + key);
  };
  const json::Value* states = at_path(values, "state");
  for (std::size_t i = 0; states != nullptr && states->is_object() && i < states->members().size();
       ++i) {
    if (at_path(states->members()[i].second, "mu_product") != nullptr) return "NAdam";
  }
  const json::Value* decoupled = in_group("decoupled_weight_decay");
  if (decoupled == nullptr || !decoupled->is_bool()) return std::nullopt;
  if (in_group("amsgrad") != nullptr) return decoupled->as_bool() ? "AdamW" : "Adam";
  return in_group("momentum_decay") != nullptr ? "NAdam" : "RAdam";
}

/// The optimizer section in tessera's configuration format.
json::Value optimizer_of(const json::Value& values) {
  json::Value params = json::Value::object();
  for (const char* key : {"lr",
                          "betas",
                          "eps",
                          "weight_decay",
                          "momentum",
                          "dampening",
                          "nesterov",
                          "lr_decay",
                          "momentum_decay"}) {
    const json::Value* value = at_path(values, std::string("param_groups.0.") + key);
    if (value != nullptr && (value->is_number() || value->is_array() || value->is_bool()))
      params[key] = *value;
  }
  json::Value out = json::Value::object();
  const auto type = type_of(values);
  const json::Value* decoupled = at_path(values, "param_groups.0.decoupled_weight_decay");
  if (type && decoupled != nullptr && decoupled->is_bool())
    params[type->starts_with("Adam") ? "adam_w_mode" : "decoupled_weight_decay"] = *decoupled;
  if (type) out["type"] = json::Value::string(*type);
  out["params"] = std::move(params);
  return out;
}

Foreign open(const fs::path& path) {
  const fs::path model = *find_model_file(path), optimizer = optimizer_beside(model);
  Foreign out;
  out.what = "a torch training loop's model and optimizer";
  out.path = model;
  out.files = 2;
  add_weights(out, read_torch_file(model).tensors);
  const TorchContents state = read_torch_file(optimizer);
  add_state(out, state, optimizer);
  for (const checkpoint::StreamedTensor& tensor : out.weights)
    out.parameters.push_back(tensor.name);
  out.step = updates_of(out, state, optimizer).value_or(*step_in(model));
  out.lr = number_at(state.values, "param_groups.0.lr");
  out.config = json::Value::object({{"optimizer", optimizer_of(state.values)}});
  return out;
}

TESSERA_FOREIGN_FORMAT("torch loop", (ForeignFormat{recognises, open}));

/// A count as torch's optimizers store it: a 0-d float.
TorchValue count_of(std::int64_t count) {
  const auto read = [value = static_cast<float>(count)](auto, auto, std::byte* out) {
    std::memcpy(out, &value, sizeof(value));
  };
  return TorchValue::tensor({"step", DType::F32, {}, read, {}});
}

/// A key of a group, and its default value as JSON.
using GroupKeys = std::vector<std::pair<const char*, const char*>>;

/// True if weight decay is decoupled: always for AdamW; for Adam by default. Nothing if neither
/// type nor mode is known.
std::optional<bool> decoupled_in(const json::Value& config, const std::string& type) {
  if (type == "adamw") return true;
  for (const char* key : {"adam_w_mode", "adamw_mode"}) {
    const json::Value* mode = at_path(config, std::string("optimizer.params.") + key);
    if (mode != nullptr && mode->is_bool()) return mode->as_bool();
  }
  return type.empty() ? std::nullopt : std::optional(true);
}

// The keys of a group in torch.optim 2.11; its load_state_dict requires all of them.
GroupKeys group_keys(const Foreign& training) {
  std::vector<std::string> states;
  for (const auto& [name, tensors] : training.state)
    states.push_back(name);
  const json::Value* written = at_path(training.config, "optimizer.type");
  const std::string type =
      written != nullptr && written->is_string() ? text::lower(written->as_string()) : "";
  const auto is = [&](std::initializer_list<std::string_view> types,
                      const std::vector<std::string>& kept) {
    return (type.empty() || std::find(types.begin(), types.end(), type) != types.end()) &&
           states == kept;
  };
  const bool momentum = number_at(training.config, "optimizer.params.momentum").value_or(0) != 0;
  GroupKeys out;
  if (is({"adam", "adamw", "fusedadam", "cpuadam", "deepspeedcpuadam", "hybridadam"},
         {"exp_avg", "exp_avg_sq"})) {
    out = {{"lr", "1e-3"},
           {"betas", "[0.9, 0.999]"},
           {"eps", "1e-8"},
           {"weight_decay", type == "adam" ? "0" : "0.01"},
           {"amsgrad", "false"},
           {"capturable", "false"},
           {"fused", "null"}};
    // Without it torch's Adam and AdamW continue according to their names.
    if (const auto decoupled = decoupled_in(training.config, type))
      out.emplace_back("decoupled_weight_decay", *decoupled ? "true" : "false");
  } else if (is({"sgd"}, {"momentum_buffer"}) || (type == "sgd" && states.empty() && !momentum)) {
    out = {{"lr", "1e-3"},
           {"momentum", "0"},
           {"dampening", "0"},
           {"weight_decay", "0"},
           {"nesterov", "false"},
           {"fused", "null"}};
  } else if (is({"adagrad"}, {"sum"})) {
    out = {{"lr", "1e-2"},
           {"lr_decay", "0"},
           {"eps", "1e-10"},
           {"weight_decay", "0"},
           {"initial_accumulator_value", "0"},
           {"fused", "null"}};
  } else {
    throw Error(Error::Kind::Unsupported,
                fmt::format("{}: an optimizer {} that keeps {} has no file of torch.optim here",
                            training.path.string(),
                            written != nullptr ? written->dump() : "of an unknown type",
                            !states.empty() ? text::join(states, ", ")
                            : momentum      ? "nothing of its momentum"
                                            : "nothing"),
                "those of Adam, AdamW, SGD and Adagrad are written; for the weights alone name a "
                "file that is not model_N.pth");
  }
  for (const auto& key : {std::pair("maximize", "false"),
                          std::pair("foreach", "null"),
                          std::pair("differentiable", "false")})
    out.emplace_back(key);
  return out;
}

/// A parameter, and its optimizer state.
struct Numbered {
  const checkpoint::StreamedTensor* weight = nullptr;
  std::vector<TorchValue::Item> state;
};

/// The parameters listed in training.parameters, or all weights, each with its own state.
std::vector<Numbered> numbered(const Foreign& training) {
  const std::set<std::string> named(training.parameters.begin(), training.parameters.end());
  std::vector<Numbered> out;
  std::map<std::string, std::size_t> places;
  for (const checkpoint::StreamedTensor& weight : training.weights) {
    const bool is_named = named.count(weight.name) > 0 ||
                          std::any_of(weight.aliases.begin(),
                                      weight.aliases.end(),
                                      [&](const auto& alias) { return named.count(alias) > 0; });
    if (!named.empty() && !is_named) continue;
    places.emplace(weight.name, out.size());
    out.push_back({&weight, {}});
  }
  for (const auto& [name, tensors] : training.state) {
    for (const checkpoint::StreamedTensor& tensor : tensors) {
      const auto place = places.find(tensor.name);
      TESSERA_REQUIRE(place != places.end(),
                      Format,
                      fmt::format("{}: its optimizer keeps {} of {}, which is not a parameter",
                                  training.path.string(),
                                  name,
                                  checkpoint::JsonCursor::shown(tensor.name)),
                      kAlone);
      out[place->second].state.emplace_back(name, TorchValue::tensor(tensor));
    }
  }
  (void)group_keys(training);  // other rules may keep different states per parameter
  for (Numbered& parameter : out) {
    const std::size_t kept = parameter.state.size();
    TESSERA_REQUIRE(kept == 0 || kept == training.state.size(),
                    Unsupported,
                    fmt::format("{}: its optimizer keeps {} of {} states of {}",
                                training.path.string(),
                                kept,
                                training.state.size(),
                                checkpoint::JsonCursor::shown(parameter.weight->name)),
                    kAlone);
    // torch counts the steps of each parameter; for a rule without other state the count is all
    // there is.
    if (kept == training.state.size()) {
      const auto began = training.began.find(parameter.weight->name);
      const std::int64_t before = began == training.began.end() ? 0 : began->second;
      parameter.state.emplace(
          parameter.state.begin(), "step", count_of(training.step - training.skipped - before));
    }
  }
  return out;
}

/// The group's value of `key`; `absent`: the JSON default.
json::Value group_value(const Foreign& training, std::string_view key, std::string_view absent) {
  if (key == "lr" && training.lr) return json::Value::number(*training.lr);
  const json::Value* found = at_path(training.config, fmt::format("optimizer.params.{}", key));
  return found != nullptr && !found->is_null() ? *found : json::parse(absent, std::string(key));
}

TorchValue group_of(const Foreign& training, std::size_t parameters) {
  std::vector<TorchValue::Item> members;
  for (const auto& [key, absent] : group_keys(training))
    members.emplace_back(key, TorchValue::of(group_value(training, key, absent)));
  std::vector<TorchValue> numbers;
  for (std::size_t i = 0; i < parameters; ++i)
    numbers.push_back(TorchValue::integer(static_cast<std::int64_t>(i)));
  members.emplace_back("params", TorchValue::list(std::move(numbers)));
  return TorchValue::dict(std::move(members));
}

/// True if a group of the configuration has its own learning rate or weight decay.
bool has_own_groups(const json::Value& config) {
  const json::Value* groups = at_path(config, "optimizer.groups");
  if (groups == nullptr || !groups->is_array()) return false;
  const auto& all = groups->items();
  return std::any_of(all.begin(), all.end(), [](const json::Value& group) {
    return number_at(group, "lr") || number_at(group, "weight_decay");
  });
}

/// The group's weight decay, if some parameters of the training have none.
std::optional<double> decay_of_all(const Foreign& training) {
  const json::Value* all = at_path(training.config, "optimizer.decay_all");
  if (all == nullptr || !all->is_bool() || all->as_bool()) return std::nullopt;
  for (const auto& [key, absent] : group_keys(training)) {
    if (std::string_view(key) != "weight_decay") continue;
    const json::Value decay = group_value(training, key, absent);
    if (decay.is_number() && decay.as_double() != 0) return decay.as_double();
  }
  return std::nullopt;
}

}  // namespace

std::string lost_in_torch_loop(const Foreign& training) {
  std::vector<std::string> lost;
  if (const auto decay = decay_of_all(training)) {
    lost.push_back(
        fmt::format("biases and norms, which did not decay, have its weight_decay of {} too",
                    text::number(*decay)));
  }
  if (has_own_groups(training.config))
    lost.emplace_back("the rates and decays of optimizer.groups are not in it");
  if (lost.empty()) return "";
  return fmt::format(
      "the optimizer's file has one group for all parameters: {}; after load_state_dict() make "
      "groups of it in param_groups",
      text::join(lost, "; "));
}

std::uint64_t torch_loop_bytes(const Foreign& training) {
  std::uint64_t total = 0;
  for (const checkpoint::StreamedTensor& tensor : training.weights)
    total += tensor.bytes();
  for (const Numbered& parameter : numbered(training)) {
    for (const auto& [name, value] : parameter.state)
      total += value.data->bytes();
  }
  return total;
}

void write_torch_loop(const fs::path& model,
                      const fs::path& optimizer,
                      const Foreign& training,
                      const checkpoint::Written& written) {
  std::vector<Numbered> parameters = numbered(training);
  TorchValue group = group_of(training, parameters.size());  // throws before anything is written
  write_torch_weights(model, training.weights, written);
  std::vector<TorchValue::Item> state;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].state.empty())
      state.emplace_back(std::to_string(i), TorchValue::dict(std::move(parameters[i].state)));
  }
  write_torch_file(
      optimizer,
      TorchValue::dict({{"state", TorchValue::dict(std::move(state), /*numbered=*/true)},
                        {"param_groups", TorchValue::list({std::move(group)})}}),
      written);
}

}  // namespace tessera::interop
