// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/deepspeed/plain_optimizer.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/interop/deepspeed/experts.h"

namespace tessera::interop::deepspeed {
namespace {

using Tensors = std::vector<const checkpoint::StreamedTensor*>;

/// The weights without the module's buffers.
Tensors trained_of(const Foreign& out, const File& model) {
  Tensors parameters;
  const json::Value* buffers = model.values.find("buffer_names");
  for (const checkpoint::StreamedTensor& tensor : out.weights) {
    const json::Value name = json::Value::string(tensor.name);
    if (buffers == nullptr || !buffers->is_array() ||
        std::find(buffers->items().begin(), buffers->items().end(), name) == buffers->items().end())
      parameters.push_back(&tensor);
  }
  return parameters;
}

/// Adds torch's optimizer in a file, whose state is numbered in the order of the parameters; not of
/// those that are in `taken`, to which it adds the others. Returns the reason if it cannot be read.
std::string add_numbered(Foreign& out,
                         const File& file,
                         const Tensors& parameters,
                         std::set<std::string>& taken) {
  const std::string root = fmt::format("{}.", kPlainState);
  const std::set<std::string> before = taken;
  for (const Weight& weight : file.tensors.all()) {
    if (!weight.name.starts_with(root)) continue;
    const auto words = text::split(weight.name.substr(root.size()), '.');
    if (words.size() != 2 || words[1] == "step") continue;
    const bool numbered = !words[0].empty() && words[0].size() <= 9 &&
                          words[0].find_first_not_of("0123456789") == std::string::npos;
    const std::size_t index = numbered ? std::stoul(words[0]) : parameters.size();
    if (index >= parameters.size() || parameters[index]->shape != weight.shape)
      return "it is of other parameters than the model";
    if (before.count(parameters[index]->name) > 0) continue;
    out.state[words[1]].push_back(stream(weight, parameters[index]->name));
    taken.insert(parameters[index]->name);
  }
  std::map<std::string, std::string> names;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    names.emplace(std::to_string(i), parameters[i]->name);
  return counts_in(file.tensors, file.values, kPlainState, names, file.path).difference();
}

/// Returns true for a parameter group that DeepSpeed made for experts
/// (split_params_into_different_moe_groups_for_optimizer).
bool is_of_experts(const json::Value& group) {
  const json::Value* const moe = group.is_object() ? group.find("moe") : nullptr;
  return moe != nullptr && moe->is_bool() && moe->as_bool();
}

/// The parameters of all groups, if the file lists them; else `absent`.
std::size_t listed_in(const std::vector<json::Value>& groups, std::size_t absent) {
  std::size_t out = 0;
  for (const json::Value& group : groups) {
    const json::Value* const list = group.is_object() ? group.find("params") : nullptr;
    if (list == nullptr || !list->is_array()) return absent;
    out += list->items().size();
  }
  return out;
}

}  // namespace

std::string add_plain_optimizer(Foreign& out, const File& model) {
  const json::Value* groups = at_path(model.values, "optimizer.param_groups");
  if (groups == nullptr || !groups->is_array()) return "none of torch's is there";
  if (groups->items().size() != 1)
    return fmt::format("its {} groups keep no names of their parameters", groups->items().size());
  std::set<std::string> taken;
  std::string reason = add_numbered(out, model, trained_of(out, model), taken);
  if (reason.empty() && out.state.empty()) reason = "it keeps nothing of its parameters";
  if (!reason.empty()) out.state.clear();
  return reason;
}

namespace {

std::string try_expert_optimizers(Foreign& out, const File& model, const std::vector<File>& ranks) {
  if (ranks.empty()) return "none is there";
  const Tensors weights = trained_of(out, model);
  std::set<std::string> taken;
  std::optional<std::int64_t> updates;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const json::Value* const groups = at_path(ranks[r].values, "optimizer.param_groups");
    if (groups == nullptr || !groups->is_array() || groups->items().empty())
      return fmt::format("none of torch's is in {}", ranks[r].path.filename().string());
    const std::vector<json::Value>& all = groups->items();
    const bool apart = all.size() == 2 && !is_of_experts(all[0]) && is_of_experts(all[1]);
    if (all.size() != 1 && !apart)
      return fmt::format("its {} groups keep no names of their parameters", all.size());
    const Tensors parameters =
        parameters_of_rank(weights, static_cast<int>(r), static_cast<int>(ranks.size()), apart);
    if (parameters.empty())
      return fmt::format("the order of the parameters of {} ranks is not known", ranks.size());
    if (listed_in(all, parameters.size()) != parameters.size())
      return "it is of other parameters than the model";
    if (std::string reason = add_numbered(out, ranks[r], parameters, taken); !reason.empty())
      return reason;
    const auto count =
        counts_in(ranks[r].tensors, ranks[r].values, kPlainState, {}, ranks[r].path).first();
    if (r > 0 && count != updates) return "its ranks have made different numbers of updates";
    updates = count;
  }
  return out.state.empty() ? "it keeps nothing of its parameters" : "";
}

}  // namespace

std::string add_expert_optimizers(Foreign& out, const File& model, const std::vector<File>& ranks) {
  std::string reason = try_expert_optimizers(out, model, ranks);
  if (!reason.empty()) out.state.clear();
  return reason;
}

}  // namespace tessera::interop::deepspeed
