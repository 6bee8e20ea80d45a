// SPDX-License-Identifier: Apache-2.0
// Checkpoints of DeepSpeed, ZeRO stages 0 to 3. Contents of each file: docs/formats/deepspeed.md.
#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/interop/deepspeed/experts.h"
#include "tessera/interop/deepspeed/flat_tensors.h"
#include "tessera/interop/deepspeed/plain_optimizer.h"
#include "tessera/interop/deepspeed/state_file.h"
#include "tessera/interop/deepspeed/states.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/torch/file.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCopy =
    "the checkpoint is damaged or incomplete: copy all files of its folder again";

/// The folder of the tag in `latest`, or `path` itself if it is such a folder.
std::optional<fs::path> tag_folder(const fs::path& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) return std::nullopt;
  const auto holds_states = [&](const fs::path& folder) {
    for (const auto& entry : fs::directory_iterator(folder, failed)) {
      if (entry.path().filename().string().ends_with("_states.pt")) return true;
    }
    return false;
  };
  if (holds_states(path))
    return fs::exists(path / "zero", failed) ? std::nullopt : std::optional(path);
  const auto tag = deepspeed::tag_in(path / "latest");
  if (!tag || !fs::is_directory(path / *tag, failed) || !holds_states(path / *tag))
    return std::nullopt;
  if (fs::exists(path / *tag / "zero", failed)) return std::nullopt;  // a universal checkpoint
  return path / *tag;
}

/// The tag in `latest` if its folder is missing, which happens when it was not copied.
std::optional<std::string> missing_tag(const fs::path& path) {
  std::error_code failed;
  const auto tag = deepspeed::tag_in(path / "latest");
  const bool missing = tag && !fs::exists(path / *tag, failed) &&
                       !fs::exists(path / "latest_universal", failed) &&
                       !fs::exists(path / "manifest.json", failed);
  return missing ? tag : std::nullopt;
}

bool recognises(const fs::path& path) {
  try {
    return tag_folder(path).has_value() || missing_tag(path).has_value();
  } catch (const std::exception&) {
    return false;
  }
}

using deepspeed::File;

/// The files of a tag by rank.
struct Found {
  std::map<int, fs::path> optimizer, sharded_models, expert_optimizers;
  std::optional<fs::path> model;
  deepspeed::ExpertFiles experts;
};

[[noreturn]] void unsupported(const fs::path& file, const char* what) {
  throw Error(Error::Kind::Unsupported,
              fmt::format("{}: {}", file.string(), what),
              "make it a universal checkpoint with DeepSpeed's ds_to_universal.py; that is read");
}

Found find_files(const fs::path& folder) {
  static const std::regex of_optimizer(
      "(?:bf16_|fp16_)?zero_pp_rank_(\\d+)_mp_rank_(\\d+)_optim_states\\.pt");
  static const std::regex of_shard("zero_pp_rank_(\\d+)_mp_rank_(\\d+)_model_states\\.pt");
  static const std::regex of_model("mp_rank_(\\d+)_model_states\\.pt");
  Found out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with("_states.pt")) continue;
    if (const auto place = deepspeed::expert_place_of(entry.path())) {
      out.experts.emplace(*place, entry.path());
      continue;
    }
    if (const auto rank = deepspeed::expert_optimizer_of(entry.path())) {
      out.expert_optimizers.emplace(*rank, entry.path());
      continue;
    }
    if (name.starts_with("layer_"))
      unsupported(entry.path(), "checkpoints of DeepSpeed's pipelines are not read");
    std::smatch match;
    const auto number = [&](std::size_t group) {
      const std::string digits = match[group].str();
      TESSERA_REQUIRE(digits.size() <= 6,
                      Format,
                      fmt::format("{}: rank {} is not a rank", entry.path().string(), digits),
                      kCopy);
      return std::stoi(digits);
    };
    const auto add = [&](std::map<int, fs::path>& to) {
      if (number(2) != 0)
        unsupported(entry.path(), "checkpoints that tensor parallelism cut are not read");
      TESSERA_REQUIRE(
          to.emplace(number(1), entry.path()).second,
          Format,
          fmt::format("{}: rank {} has another file too", entry.path().string(), number(1)),
          "keep the files of one training only");
    };
    if (std::regex_match(name, match, of_optimizer)) {
      add(out.optimizer);
    } else if (std::regex_match(name, match, of_shard)) {
      add(out.sharded_models);
    } else if (std::regex_match(name, match, of_model)) {
      if (number(1) != 0)
        unsupported(entry.path(), "checkpoints that tensor parallelism cut are not read");
      out.model = entry.path();
    }
  }
  return out;
}

void check_ranks(const fs::path& folder, const std::map<int, fs::path>& files, const char* what) {
  int expected = 0;
  for (const auto& [rank, path] : files) {
    TESSERA_REQUIRE(
        rank == expected,
        Format,
        fmt::format("{}: the {} of rank {} are missing", folder.string(), what, expected),
        kCopy);
    ++expected;
  }
}

using deepspeed::Parameter;
using Groups = std::vector<std::vector<Parameter>>;

/// The keys of a rank's flat tensors for one group: of the masters and of each moment.
struct Flats {
  std::string master;
  std::map<std::string, std::string> state;
};

// Moments are stored as in torch, {"state": {group: {...}}}, or as a list of the groups.
Flats flats_of(const File& file, const std::string& master, const std::string& state) {
  Flats out{master, {}};
  require_every_element(file.tensor(master), file.path.string());
  const std::int64_t numel = file.tensor(master).numel();
  for (const Weight& weight : file.tensors.all()) {
    if (!weight.name.starts_with(state + ".")) continue;
    const std::string key = weight.name.substr(state.size() + 1);
    // Smaller tensors are counts and norms; a moment may keep the padding that was removed from the
    // masters.
    if (key.find('.') == std::string::npos && key != "step" && weight.numel() >= numel)
      out.state.emplace(key, weight.name);
  }
  return out;
}

/// The runs of each parameter by kind: "" for the masters, else the moment's name.
using Runs = std::map<std::string, std::map<std::string, std::vector<Run>>>;

void add_run(Runs& runs,
             const File& file,
             const Flats& flats,
             const std::string& parameter,
             std::int64_t begin,
             std::int64_t count) {
  runs[""][parameter].push_back({file.tensor(flats.master), begin, count});
  for (const auto& [moment, name] : flats.state)
    runs[moment][parameter].push_back({file.tensor(name), begin, count});
}

/// Stages 1 and 2: one flat tensor per group, divided into one part per rank.
void add_flat_group(Runs& runs,
                    const std::vector<File>& ranks,
                    const std::vector<Parameter>& group,
                    std::size_t g,
                    bool mapped) {
  const std::string root = "optimizer_state_dict.";
  std::vector<Flats> flats;
  std::vector<deepspeed::Part> parts;
  for (const File& file : ranks) {
    std::string state = fmt::format("{}base_optimizer_state.state.{}", root, g);
    if (at_path(file.values, root + "base_optimizer_state") != nullptr &&
        file.need(root + "base_optimizer_state").is_array()) {
      state = fmt::format("{}base_optimizer_state.{}", root, g);
    }
    flats.push_back(
        flats_of(file, fmt::format("{}single_partition_of_fp32_groups.{}", root, g), state));
    parts.push_back({file.path, file.values, file.tensor(flats.back().master).numel()});
  }
  const auto pieces = deepspeed::pieces_of(parts, group, g, mapped);
  for (std::size_t i = 0; i < group.size(); ++i) {
    for (const deepspeed::Piece& piece : pieces[i])
      add_run(runs, ranks[piece.rank], flats[piece.rank], group[i].name, piece.begin, piece.count);
  }
}

/// Stage 3: every rank holds ceil(numel / ranks) elements of each parameter, one parameter after
/// the other, in one flat tensor per sub-group.
void add_sharded(Runs& runs, const std::vector<File>& ranks, const Groups& groups) {
  const std::string root = "optimizer_state_dict.";
  const auto world = static_cast<std::int64_t>(ranks.size());
  for (std::int64_t rank = 0; rank < world; ++rank) {
    const File& file = ranks[static_cast<std::size_t>(rank)];
    std::vector<Flats> flats;
    std::vector<std::int64_t> sizes;
    while (file.tensors.has(fmt::format("{}fp32_flat_groups.{}", root, flats.size()))) {
      const std::size_t g = flats.size();
      flats.push_back(flats_of(file,
                               fmt::format("{}fp32_flat_groups.{}", root, g),
                               fmt::format("{}optimizer_state_dict.state.{}", root, g)));
      sizes.push_back(file.tensor(flats.back().master).numel());
    }
    std::size_t g = 0;
    std::int64_t at = 0;
    for (const auto& group : groups) {
      for (const Parameter& parameter : group) {
        const std::int64_t share = (parameter.numel + world - 1) / world;
        // The shares of the last ranks end in padding.
        const std::int64_t held =
            std::clamp<std::int64_t>(parameter.numel - rank * share, 0, share);
        for (std::int64_t done = 0; done < share;) {
          while (g < sizes.size() && at == sizes[g]) {
            ++g;
            at = 0;
          }
          TESSERA_REQUIRE(
              g < sizes.size(),
              Format,
              fmt::format("{}: ends before parameter {}", file.path.string(), parameter.name),
              kCopy);
          const std::int64_t take = std::min(share - done, sizes[g] - at);
          if (const std::int64_t real = std::clamp<std::int64_t>(held - done, 0, take); real > 0)
            add_run(runs, file, flats[g], parameter.name, at, real);
          at += take;
          done += take;
        }
      }
    }
    while (g < sizes.size() && at == sizes[g]) {
      ++g;
      at = 0;
    }
    TESSERA_REQUIRE(g >= sizes.size(),
                    Format,
                    fmt::format("{}: holds more than its parameters", file.path.string()),
                    kCopy);
  }
}

json::Value scaler_of(const File& file) {
  const json::Value* scaler = at_path(file.values, "optimizer_state_dict.loss_scaler");
  const json::Value* dynamic = scaler == nullptr ? nullptr : at_path(*scaler, "state.dynamic");
  if (dynamic == nullptr || !dynamic->is_bool() || !dynamic->as_bool()) return {};
  const json::Value* scale = at_path(*scaler, "state.cur_scale");
  if (scale == nullptr || !scale->is_number()) return {};
  return json::Value::object(
      {{"scaler", json::Value::string("deepspeed")},
       {"scale", *scale},
       {"iteration", json::Value::integer(integer_at(*scaler, "state.cur_iter", 0))},
       {"last_overflow", json::Value::integer(integer_at(*scaler, "state.last_overflow_iter", -1))},
       {"hysteresis_left", json::Value::integer(integer_at(*scaler, "state.cur_hysteresis", 1))},
       {"clean_steps", json::Value::integer(0)}});
}

/// The number of updates in the optimizer state; nothing if not stored. In torch's optimizers all
/// parameters with a state have the same count: add_plain_optimizer().
std::optional<std::int64_t> updates_of(const File& file) {
  for (const std::string path : {"optimizer_state_dict.optimizer_state_dict.state.0.step",
                                 "optimizer_state_dict.base_optimizer_state.state.0.step",
                                 "optimizer_state_dict.base_optimizer_state.0.step"}) {
    if (const auto count = count_at(file.tensors, file.values, path, file.path)) return count;
  }
  return counts_in(file.tensors, file.values, deepspeed::kPlainState, {}, file.path).first();
}

/// The learning rate of the next update, likewise.
std::optional<double> rate_of(const File& file) {
  for (const char* path : {"optimizer_state_dict.optimizer_state_dict.param_groups.0.lr",
                           "optimizer_state_dict.base_optimizer_state.param_groups.0.lr",
                           "optimizer.param_groups.0.lr"}) {
    if (const auto rate = number_at(file.values, path)) return rate;
  }
  return std::nullopt;
}

/// Frozen parameters are stored whole (stages 1 and 2) or sharded (stage 3) next to the model.
void add_frozen(Foreign& out, const std::vector<File>& models) {
  const json::Value* shapes = at_path(models.front().values, "frozen_param_shapes");
  if (shapes == nullptr || !shapes->is_object()) return;
  for (const Parameter& parameter : deepspeed::shapes_of(models.front().path, *shapes)) {
    std::vector<Run> runs;
    std::int64_t left = parameter.numel;
    for (const File& file : models) {
      const Weight& piece = file.tensor("frozen_param_fragments." + parameter.name);
      const std::int64_t take = std::min(left, piece.numel());
      runs.push_back({piece, 0, take});
      left -= take;
    }
    out.weights.push_back(
        join(parameter.name, parameter.shape, std::move(runs), models.front().path.string()));
  }
}

void add_buffers(Foreign& out, const File& model) {
  const json::Value* names = model.values.find("buffer_names");
  if (names == nullptr || !names->is_array()) return;
  for (const json::Value& name : names->items()) {
    if (!name.is_string()) continue;
    if (const Weight* buffer = model.tensors.find("module." + name.as_string()))
      out.weights.push_back(stream(*buffer, name.as_string()));
  }
}

void add_aliases(Foreign& out, const File& model) {
  for (const auto& [alias, name] : deepspeed::aliases_of(model.values)) {
    for (checkpoint::StreamedTensor& tensor : out.weights) {
      if (tensor.name == name) tensor.aliases.push_back(alias);
    }
  }
}

/// Stages 1 and 2 keep frozen parameters only in the module, in its dtype. Files from before
/// shared_params identify a tied tensor only by its storage.
void add_untrained(Foreign& out, const File& model) {
  constexpr std::string_view kModule = "module.";
  const auto aliases = deepspeed::aliases_of(model.values);
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < out.weights.size(); ++i)
    places.emplace(out.weights[i].name, i);
  std::map<const std::byte*, std::pair<const Weight*, std::size_t>> storages;
  for (const Weight& weight : model.tensors.all()) {
    if (!weight.name.starts_with(kModule)) continue;
    const std::string name = weight.name.substr(kModule.size());
    if (aliases.count(name) > 0) continue;
    const auto [place, fresh] = places.emplace(name, out.weights.size());
    const auto twin = storages.find(weight.data);
    if (fresh && twin != storages.end() && weight.same_storage(*twin->second.first)) {
      out.weights[twin->second.second].aliases.push_back(name);
      place->second = twin->second.second;
    } else if (fresh) {
      out.weights.push_back(stream(weight, name));
    }
    storages.emplace(weight.data, std::pair(&weight, place->second));
  }
}

/// Without optimizer files: the module in its dtype, each storage once.
void add_module(Foreign& out, const File& model) {
  constexpr std::string_view kModule = "module.";
  std::vector<const Weight*> taken;
  for (const Weight& weight : model.tensors.all()) {
    if (!weight.name.starts_with(kModule)) continue;
    const std::string name = weight.name.substr(kModule.size());
    const auto twin = std::find_if(taken.begin(), taken.end(), [&](const Weight* other) {
      return weight.numel() > 0 && weight.same_storage(*other);
    });
    if (twin != taken.end()) {
      out.weights[static_cast<std::size_t>(twin - taken.begin())].aliases.push_back(name);
      continue;
    }
    taken.push_back(&weight);
    out.weights.push_back(stream(weight, name));
  }
}

void add_optimizer(Foreign& out, const std::vector<File>& ranks, const File& model, bool sharded) {
  const Groups groups = deepspeed::groups_of(model.path, model.need("param_shapes"));
  Runs runs;
  if (sharded) {
    add_sharded(runs, ranks, groups);
  } else {
    const bool mapped = deepspeed::mappings_hold(model.values);
    for (std::size_t g = 0; g < groups.size(); ++g)
      add_flat_group(runs, ranks, groups[g], g, mapped);
  }
  const std::string where = ranks.front().path.parent_path().string();
  for (auto& [moment, by_name] : runs) {
    for (const auto& group : groups) {
      for (const Parameter& parameter : group) {
        checkpoint::StreamedTensor tensor =
            join(parameter.name, parameter.shape, std::move(by_name[parameter.name]), where);
        (moment.empty() ? out.weights : out.state[moment]).push_back(std::move(tensor));
      }
    }
  }
}

void require_all_ranks(const std::vector<File>& ranks) {
  for (const File& file : ranks) {
    const json::Value& count = file.need("optimizer_state_dict.partition_count");
    const json::Value& parts =
        count.is_array() && !count.items().empty() ? count.items().front() : count;
    TESSERA_REQUIRE(
        parts.is_number() && parts.as_integer() == static_cast<std::int64_t>(ranks.size()),
        Format,
        fmt::format("{}: is of a training on {} ranks, and there are optim_states of {}",
                    file.path.string(),
                    parts.dump(),
                    ranks.size()),
        kCopy);
  }
}

fs::path folder_at(const fs::path& path) {
  if (const auto missing = missing_tag(path)) {
    throw Error(Error::Kind::Format,
                fmt::format("{} names the tag {}, which is not there",
                            (path / "latest").string(),
                            checkpoint::JsonCursor::shown(*missing)),
                "copy the tag's folder too, or write the name of one that is there into latest");
  }
  return *tag_folder(path);
}

/// Adds steps, samples and skipped steps. `counts`: the file with the optimizer's update counts;
/// nullptr if its optimizer cannot be read.
void add_counters(Foreign& out, const File& model, const File* counts) {
  out.step = integer_at(model.values, "global_steps", 0);
  out.skipped = integer_at(model.values, "skipped_steps", 0);
  if (const auto samples = integer_at(model.values, "global_samples", -1); samples >= 0)
    out.samples = samples;
  const auto updates = counts == nullptr ? std::nullopt : updates_of(*counts);
  if (updates && *updates <= out.step) out.skipped = out.step - *updates;
  TESSERA_REQUIRE(out.step >= 0 && out.skipped >= 0 && out.skipped <= out.step,
                  Format,
                  fmt::format("{}: {} steps, {} of them skipped, cannot be",
                              model.path.string(),
                              out.step,
                              out.skipped),
                  kCopy);
}

Foreign open(const fs::path& path) {
  Foreign out;
  const fs::path folder = folder_at(path);
  const Found found = find_files(folder);
  check_ranks(folder, found.optimizer, "optim_states");
  check_ranks(folder, found.sharded_models, "model_states");
  std::vector<File> models;
  for (const auto& [rank, file] : found.sharded_models)
    models.emplace_back(file);
  if (found.model) models.emplace_back(*found.model);
  TESSERA_REQUIRE(
      !models.empty(), Format, fmt::format("{}: has no model_states", folder.string()), kCopy);
  std::vector<File> ranks;
  const bool experts = !found.experts.empty();
  for (const auto& [rank, file] : found.optimizer) {
    if (!experts) ranks.emplace_back(file);
  }
  // With ZeRO these say nothing, and the parts of its ranks are those of several groups.
  std::vector<File> expert_ranks;
  if (found.optimizer.empty()) {
    check_ranks(folder, found.expert_optimizers, "optim_states of experts");
    for (const auto& [rank, file] : found.expert_optimizers)
      expert_ranks.emplace_back(file);
  }
  const File& model = models.front();
  const bool sharded = !found.sharded_models.empty();
  if (sharded && experts) unsupported(model.path, "checkpoints of experts in stage 3 are not read");
  TESSERA_REQUIRE(!sharded || !ranks.empty(),
                  Format,
                  fmt::format("{}: stage 3 keeps the weights in optim_states, and there are none",
                              folder.string()),
                  kCopy);
  out.path = path;
  out.files = models.size() + ranks.size();
  std::string without;
  if (experts) {
    add_module(out, model);
    deepspeed::add_experts(found.experts, model.values.find("num_experts"), folder, out.weights);
    out.files += found.experts.size() + expert_ranks.size();
    without = found.optimizer.empty() ? deepspeed::add_expert_optimizers(out, model, expert_ranks)
                                      : "that of experts is in parts of ZeRO";
  } else if (ranks.empty()) {
    add_module(out, model);
    without = deepspeed::add_plain_optimizer(out, model);
  } else {
    require_all_ranks(ranks);
    add_optimizer(out, ranks, model, sharded);
    add_frozen(out, models);
    add_buffers(out, model);
    if (!sharded) add_untrained(out, model);
    add_aliases(out, model);
    out.loss_scaler = scaler_of(ranks.front());
  }
  const File& of_optimizer = !ranks.empty()          ? ranks.front()
                             : !expert_ranks.empty() ? expert_ranks.front()
                                                     : model;
  if (without.empty()) out.lr = rate_of(of_optimizer);
  add_counters(out, model, without.empty() ? &of_optimizer : nullptr);
  if (const json::Value* config = model.values.find("ds_config");
      config != nullptr && config->is_object())
    out.config = *config;
  if (!experts) out.parameters = deepspeed::parameters_of(model.values);
  const std::string stage = sharded ? "3" : ranks.empty() ? "0" : "1 or 2";
  out.what = fmt::format("a DeepSpeed checkpoint (ZeRO stage {}, {} ranks)",
                         integer_at(out.config, "zero_optimization.stage", -1) >= 0
                             ? std::to_string(integer_at(out.config, "zero_optimization.stage", 0))
                             : stage,
                         std::max<std::size_t>(ranks.size(), 1));
  if (!without.empty())
    out.what += fmt::format(", its weights alone: of its optimizer's state {}", without);
  return out;
}

TESSERA_FOREIGN_FORMAT("deepspeed", (ForeignFormat{recognises, open}));

}  // namespace
}  // namespace tessera::interop
