// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/megatron/part.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <regex>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/interop/torch/file.h"

namespace tessera::interop::megatron {
namespace {

namespace fs = std::filesystem;

/// "mp_rank_01", "mp_rank_01_003", "mp_rank_01_003_002". With experts on several ranks and without
/// a pipeline, the second number is that of experts: Reader knows it from the arguments.
std::optional<Place> place_of(const fs::path& folder) {
  static const std::regex name_pattern("mp_rank_(\\d{2,4})(?:_(\\d{3,4}))?(?:_(\\d{3,4}))?");
  std::smatch match;
  const std::string name = folder.filename().string();
  if (!std::regex_match(name, match, name_pattern)) return std::nullopt;
  const auto number = [&](std::size_t group) {
    return match[group].matched ? std::stoi(match[group].str()) : 0;
  };
  return Place{number(1), number(2), number(3)};
}

std::optional<fs::path> file_in(const fs::path& folder) {
  std::error_code failed;
  for (const char* name : {"model_optim_rng.pt", "model_rng.pt"}) {
    if (fs::is_regular_file(folder / name, failed)) return folder / name;
  }
  return std::nullopt;
}

constexpr std::array<std::string_view, 3> kMoments = {"exp_avg", "exp_avg_sq", "momentum_buffer"};

/// "model", or for an interleaved pipeline "model0", "model1", ...
std::vector<std::string> stage_keys(const json::Value& values) {
  constexpr std::size_t kMaxStages = 1024;
  std::vector<std::string> out;
  for (std::string key = "model0"; out.size() < kMaxStages && at_path(values, key) != nullptr;) {
    out.push_back(std::move(key));
    key = fmt::format("model{}", out.size());
  }
  if (out.empty()) out.emplace_back("model");
  return out;
}

std::vector<Weight> tensors_below(const Named& tensors, const std::string& prefix) {
  std::vector<Weight> out;
  for (const Weight& weight : tensors.all()) {
    if (!weight.name.starts_with(prefix)) continue;
    out.push_back(weight);
    out.back().name.erase(0, prefix.size());
  }
  return out;
}

/// A number, stored as such or as a tensor with one element.
std::optional<double> number_of(const json::Value& values,
                                const Named& tensors,
                                const std::string& path) {
  const Weight* found = tensors.find(path);
  if (found == nullptr || found->numel() != 1) return number_at(values, path);
  const auto as = [&]<class T>(T value) -> std::optional<double> {
    found->copy(0, 1, reinterpret_cast<std::byte*>(&value));
    return std::isfinite(static_cast<double>(value)) ? std::optional(static_cast<double>(value))
                                                     : std::nullopt;
  };
  switch (found->dtype) {
    case DType::F32:
      return as(float{});
    case DType::F64:
      return as(double{});
    case DType::I64:
      return as(std::int64_t{});
    case DType::I32:
      return as(std::int32_t{});
    default:
      return std::nullopt;
  }
}

/// A trained weight, and its virtual stage.
struct Parameter {
  std::size_t stage = 0;
  const Weight* weight = nullptr;
};

// Transformer Engine stores its scales among the weights.
bool trains(const Weight& weight) {
  const bool floats =
      weight.dtype == DType::F32 || weight.dtype == DType::F16 || weight.dtype == DType::BF16;
  return floats && weight.name.find("_extra_state") == std::string::npos;
}

/// The numbers by which an optimizer group identifies its parameters.
struct Group {
  std::size_t index = 0;
  std::vector<std::string> numbers;
};

/// The groups that have parameters.
std::vector<Group> groups_of(const json::Value& groups) {
  std::vector<Group> out;
  for (std::size_t g = 0; g < groups.items().size(); ++g) {
    Group group{g, {}};
    const json::Value* params = at_path(groups.items()[g], "params");
    for (std::size_t i = 0; params != nullptr && params->is_array() && i < params->items().size();
         ++i)
      group.numbers.push_back(params->items()[i].dump());
    if (!group.numbers.empty()) out.push_back(std::move(group));
  }
  return out;
}

/// The optimizer's tensors in one file. They are numbered group by group; within a group they have
/// the order of the model's tensors.
class State {
 public:
  State(Part& part, const Named& tensors) : part_(part), tensors_(tensors) {
    const json::Value* optimizer = at_path(part.values, "optimizer");
    if (optimizer != nullptr && optimizer->is_array() && optimizer->items().size() == 1)
      root_ += ".0";
    inner_ = root_;
    for (const char* key : {".optimizer", ".optimizer_state_dict"}) {
      if (at_path(part.values, root_ + key) != nullptr) inner_ = root_ + key;
    }
    for (const char* key : {".fp32_from_fp16_params", ".fp32_from_fp16"}) {
      if (at_path(part.values, root_ + key) != nullptr) masters_ = root_ + key;
    }
  }

  /// Adds it to the part; returns the reason if it cannot.
  std::string read() {
    const json::Value* optimizer = at_path(part_.values, "optimizer");
    if (optimizer == nullptr || optimizer->is_null()) return "none was saved";
    const json::Value* groups = at_path(part_.values, inner_ + ".param_groups");
    const json::Value* state = at_path(part_.values, inner_ + ".state");
    if (groups == nullptr || !groups->is_array() || state == nullptr || !state->is_object() ||
        state->members().empty())
      return "a distributed optimizer keeps it elsewhere, in an order of its own";
    const auto held = groups_of(*groups);
    if (held.empty()) return "its groups hold no parameters";
    if (held.size() > 2)
      return fmt::format("its {} groups keep no names of their parameters", held.size());
    if (std::string why = choose_moments(*state, held.front().numbers.front()); !why.empty())
      return why;
    list_parameters();
    if (std::string why = take(held); !why.empty()) return why;
    for (std::size_t v = 0; v < part_.stages.size(); ++v) {
      for (auto& [kind, weights] : made_[v])
        part_.stages[v].emplace(kind, Named(std::move(weights)));
    }
    describe(held.front());
    return "";
  }

 private:
  [[nodiscard]] std::string path_of(const std::string& number, std::string_view moment) const {
    return fmt::format("{}.state.{}.{}", inner_, number, moment);
  }

  std::string choose_moments(const json::Value& state, const std::string& number) {
    const json::Value* first = state.find(number);
    for (std::size_t i = 0; first != nullptr && first->is_object() && i < first->members().size();
         ++i) {
      const std::string& name = first->members()[i].first;
      if (name != "step" && std::find(kMoments.begin(), kMoments.end(), name) == kMoments.end())
        return fmt::format("it keeps {}, which none here does",
                           checkpoint::JsonCursor::shown(name));
    }
    for (const std::string_view moment : kMoments) {
      if (tensors_.has(path_of(number, moment))) part_.moments.emplace_back(moment);
    }
    return part_.moments.empty() ? "it keeps nothing of its parameters" : "";
  }

  void list_parameters() {
    for (std::size_t v = 0; v < part_.stages.size(); ++v) {
      for (const Weight& weight : part_.stages[v].at(kWeights).all()) {
        if (!trains(weight)) continue;
        all_.push_back({v, &weight});
        (weight.shape.size() > 1 ? matrices_ : vectors_).push_back({v, &weight});
      }
    }
  }

  /// Matrices decay and vectors do not; without decay all are in one group.
  std::string take(const std::vector<Group>& held) {
    constexpr const char* kOther = "it is of other parameters than the model";
    made_.resize(part_.stages.size());
    std::size_t taken = 0;
    std::vector<bool> of_vectors;
    for (const Group& group : held) {
      const Weight* sample = tensors_.find(path_of(group.numbers.front(), part_.moments.front()));
      if (sample == nullptr) return kOther;
      of_vectors.push_back(sample->shape.size() < 2);
      const auto& list = held.size() == 1 ? all_ : of_vectors.back() ? vectors_ : matrices_;
      if (list.size() != group.numbers.size()) return kOther;
      taken += list.size();
      for (std::size_t i = 0; i < list.size(); ++i) {
        for (const std::string& moment : part_.moments) {
          if (!add(list[i], moment, path_of(group.numbers[i], moment))) return kOther;
        }
        if (!masters_.empty() &&
            !add(list[i], kMasters, fmt::format("{}.{}.{}", masters_, group.index, i)))
          return kOther;
      }
    }
    const bool twice = held.size() == 2 && of_vectors[0] == of_vectors[1];
    return twice || taken != all_.size() ? kOther : "";
  }
  bool add(const Parameter& parameter, const std::string& kind, const std::string& from) {
    const Weight* found = tensors_.find(from);
    if (found == nullptr || found->shape != parameter.weight->shape) return false;
    made_[parameter.stage][kind].push_back(*found);
    made_[parameter.stage][kind].back().name = parameter.weight->name;
    return true;
  }

  // Adam of apex and Transformer Engine stores one step count per group.
  void describe(const Group& group) {
    const std::string settings = fmt::format("{}.param_groups.{}.", inner_, group.index);
    auto count = number_of(part_.values, tensors_, path_of(group.numbers.front(), "step"));
    if (!count) count = number_of(part_.values, tensors_, settings + "step");
    if (count && *count >= 0 && *count < 0x1p53) part_.updates = static_cast<std::int64_t>(*count);
    part_.lr = number_of(part_.values, tensors_, settings + "lr");
    const std::string scaler = root_ + ".grad_scaler.";
    const auto scale = number_of(part_.values, tensors_, scaler + "scale");
    if (!scale || at_path(part_.values, scaler + "growth_tracker") == nullptr) return;
    const auto left = [&](const char* key) {
      return json::Value::integer(
          std::max<std::int64_t>(integer_at(part_.values, scaler + key, 0), 0));
    };
    part_.loss_scaler =
        json::Value::object({{"scaler", json::Value::string("megatron")},
                             {"scale", json::Value::number(*scale)},
                             {"iteration", json::Value::integer(part_.updates.value_or(0))},
                             {"last_overflow", json::Value::integer(-1)},
                             {"hysteresis_left", left("hysteresis_tracker")},
                             {"clean_steps", left("growth_tracker")}});
  }

  Part& part_;
  const Named& tensors_;
  std::string root_ = "optimizer", inner_, masters_;
  std::vector<Parameter> all_, matrices_, vectors_;
  std::vector<std::map<std::string, std::vector<Weight>>> made_;  // for each stage
};

}  // namespace

std::map<Place, fs::path> files_of(const fs::path& folder) {
  std::error_code failed;
  std::map<Place, fs::path> out;
  if (!fs::is_directory(folder, failed)) return out;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    const auto place = place_of(entry.path());
    if (!place) continue;
    if (const auto file = file_in(entry.path())) out.emplace(*place, *file);
  }
  return out;
}

fs::path iteration_folder(const fs::path& path) {
  const fs::path tracker = path / "latest_checkpointed_iteration.txt";
  std::error_code failed;
  if (!fs::is_regular_file(tracker, failed) || fs::file_size(tracker, failed) > 64) return path;
  const std::string word(text::trim(files::read(tracker)));
  if (word == "release") return path / word;
  if (word.empty() || word.size() > 12 || word.find_first_not_of("0123456789") != std::string::npos)
    return path;
  return path / fmt::format("iter_{:07}", std::stoll(word));
}

bool is_distributed(const fs::path& folder) {
  std::error_code failed;
  return fs::is_regular_file(folder / "common.pt", failed) &&
         fs::exists(folder / ".metadata", failed);
}

Part read_part(const fs::path& file) {
  TorchContents contents = read_torch_file(file);
  const Named tensors(std::move(contents.tensors));
  Part out;
  out.path = file;
  out.values = std::move(contents.values);
  for (const std::string& key : stage_keys(out.values)) {
    Stage stage;
    stage.emplace(kWeights, Named(tensors_below(tensors, key + ".")));
    out.stages.push_back(std::move(stage));
  }
  out.without_state = State(out, tensors).read();
  return out;
}

}  // namespace tessera::interop::megatron
