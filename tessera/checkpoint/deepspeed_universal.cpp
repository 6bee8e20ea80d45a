// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's universal checkpoints: a folder for each parameter, a file for each thing known of
// it. Bytes: docs/formats/deepspeed.md.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/foreign.h"
#include "tessera/checkpoint/foreign_write.h"
#include "tessera/checkpoint/storage.h"
#include "tessera/checkpoint/torch_file.h"
#include "tessera/checkpoint/torch_value.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCopy =
    "the checkpoint is damaged or incomplete: copy all of its files again";

std::optional<fs::path> tag_folder(const fs::path& path) {
  std::error_code failed;
  if (fs::is_directory(path / "zero", failed)) return path;
  if (!fs::is_regular_file(path / "latest_universal", failed) ||
      fs::file_size(path / "latest_universal", failed) > 4096) {
    return std::nullopt;
  }
  const std::string tag(text::trim(files::read(path / "latest_universal")));
  const bool plain = !tag.empty() && tag != "." && tag != ".." && fs::path(tag).filename() == tag;
  if (!plain || !fs::is_directory(path / tag / "zero", failed)) return std::nullopt;
  return path / tag;
}

bool recognises(const fs::path& path) {
  try {
    return tag_folder(path).has_value();
  } catch (const std::exception&) {
    return false;
  }
}

/// The tensor of fp32.pt and its kin: bare, or in a dict under "param".
Weight tensor_in(const fs::path& path) {
  const TorchContents contents = read_torch_file(path);
  for (const Weight& weight : contents.tensors) {
    if (weight.name.empty() || weight.name == "param") return weight;
  }
  throw Error(Error::Kind::Format, path.string() + ": holds no tensor \"param\"", kCopy);
}

std::optional<std::int64_t> step_in(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  const TorchContents contents = read_torch_file(path);
  if (contents.values.is_number()) return contents.values.as_integer();
  if (contents.tensors.size() != 1 || contents.tensors[0].numel() != 1 ||
      contents.tensors[0].dtype != DType::F32) {
    return std::nullopt;
  }
  float value = 0;
  contents.tensors[0].copy(0, 1, reinterpret_cast<std::byte*>(&value));
  return static_cast<std::int64_t>(value);
}

void add_meta(Foreign& out, const fs::path& folder, std::optional<std::int64_t> updates) {
  out.step = updates.value_or(0);
  std::vector<fs::path> models;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().ends_with("_model_states.pt"))
      models.push_back(entry.path());
  }
  if (models.empty()) return;
  out.files += 1;
  const json::Value values =
      read_torch_file(*std::min_element(models.begin(), models.end())).values;
  out.step = integer_at(values, "global_steps", out.step);
  out.skipped = integer_at(values, "skipped_steps", 0);
  if (updates && *updates <= out.step) out.skipped = out.step - *updates;
  TESSERA_REQUIRE(
      out.step >= 0 && out.skipped >= 0 && out.skipped <= out.step,
      Format,
      fmt::format(
          "{}: {} steps, {} of them skipped, cannot be", folder.string(), out.step, out.skipped),
      kCopy);
  if (const std::int64_t samples = integer_at(values, "global_samples", -1); samples >= 0)
    out.samples = samples;
  if (const json::Value* config = at_path(values, "ds_config"); config && config->is_object())
    out.config = *config;
  const json::Value* shared = at_path(values, "shared_params");
  for (StreamedTensor& tensor : out.weights) {
    for (std::size_t i = 0;
         shared != nullptr && shared->is_object() && i < shared->members().size();
         ++i) {
      const auto& [alias, name] = shared->members()[i];
      if (name.is_string() && name.as_string() == tensor.name) tensor.aliases.push_back(alias);
    }
  }
}

Foreign open(const fs::path& path) {
  Foreign out;
  const fs::path folder = *tag_folder(path);
  std::vector<fs::path> parameters;
  for (const auto& entry : fs::directory_iterator(folder / "zero")) {
    if (entry.is_directory()) parameters.push_back(entry.path());
  }
  std::sort(parameters.begin(), parameters.end());
  std::optional<std::int64_t> updates;
  for (const fs::path& parameter : parameters) {
    const std::string name = parameter.filename().string();
    TESSERA_REQUIRE(fs::exists(parameter / "fp32.pt"),
                    Format,
                    fmt::format("{} has no fp32.pt", parameter.string()),
                    kCopy);
    const Weight weight = tensor_in(parameter / "fp32.pt");
    out.weights.push_back(stream(weight, name));
    ++out.files;
    for (const auto& entry : fs::directory_iterator(parameter)) {
      const std::string state = entry.path().stem().string();
      if (entry.path().extension() != ".pt" || state == "fp32" || state == "step") continue;
      const Weight moment = tensor_in(entry.path());
      ++out.files;
      TESSERA_REQUIRE(moment.numel() == weight.numel(),
                      Format,
                      fmt::format("{}: has {} elements, and the parameter {}",
                                  entry.path().string(),
                                  moment.numel(),
                                  weight.numel()),
                      kCopy);
      // Stage 3 keeps some flat.
      out.state[state].push_back(
          join(name, weight.shape, {{moment, 0, moment.numel()}}, entry.path().string()));
    }
    if (!updates) updates = step_in(parameter / "step.pt");
  }
  TESSERA_REQUIRE(!out.weights.empty(),
                  Format,
                  fmt::format("{} has no parameters", (folder / "zero").string()),
                  kCopy);
  out.path = path;
  if (const fs::path common = folder / "zero" / "optimizer_state.pt"; fs::exists(common)) {
    out.lr = number_at(read_torch_file(common).values, "param_groups.0.lr");
    ++out.files;
  }
  add_meta(out, folder, updates);
  out.what = "a universal checkpoint of DeepSpeed";
  return out;
}

TESSERA_FOREIGN_FORMAT("deepspeed-universal", (ForeignFormat{recognises, open}));

/// A parameter's name as the name of a folder.
const std::string& folder_name(const std::string& name) {
  TESSERA_REQUIRE(!name.empty() && name != "." && name != ".." &&
                      name.find('/') == std::string::npos && name.size() < 250,
                  Unsupported,
                  fmt::format("a parameter \"{}\" cannot be the name of a folder", name),
                  "write another format");
  return name;
}

void write_file(
    const fs::path& path, const TorchValue& value, const Written& written = [](std::uint64_t) {}) {
  write_torch_file(path, value, written);
}

TorchValue shapes_of(const std::vector<StreamedTensor>& weights) {
  std::vector<TorchValue::Item> shapes;
  for (const StreamedTensor& tensor : weights)
    shapes.emplace_back(tensor.name, TorchValue::size(tensor.shape));
  std::vector<TorchValue> groups;
  groups.push_back(TorchValue::ordered(std::move(shapes)));
  return TorchValue::list(std::move(groups));
}

TorchValue aliases_of(const std::vector<StreamedTensor>& weights) {
  std::vector<TorchValue::Item> out;
  for (const StreamedTensor& tensor : weights) {
    for (const std::string& alias : tensor.aliases)
      out.emplace_back(alias, TorchValue::text(tensor.name));
  }
  return TorchValue::dict(std::move(out));
}

// What DeepSpeed's engine asks of the file before it turns to zero/.
TorchValue model_states(const Foreign& training, const std::string& version) {
  const std::int64_t updates = training.step - training.skipped;
  const auto count = [](std::int64_t value) { return TorchValue::integer(value); };
  return TorchValue::dict(
      {{"module", TorchValue::ordered({})},
       {"buffer_names", TorchValue::list({})},
       {"optimizer", TorchValue()},
       {"param_shapes", shapes_of(training.weights)},
       {"frozen_param_shapes", TorchValue()},
       {"shared_params", aliases_of(training.weights)},
       {"frozen_param_fragments", TorchValue()},
       {"lr_scheduler", TorchValue::dict({{"last_batch_iteration", count(updates - 1)}})},
       {"data_sampler", TorchValue()},
       {"random_ltd", TorchValue()},
       {"sparse_tensor_module_names", TorchValue::list({})},
       {"skipped_steps", count(training.skipped)},
       {"global_steps", count(training.step)},
       {"global_samples", count(training.samples.value_or(0))},
       {"dp_world_size", count(1)},
       {"mp_world_size", count(1)},
       {"ds_config",
        training.config.is_object() ? TorchValue::of(training.config) : TorchValue::dict({})},
       {"ds_version", TorchValue::text(version)}});
}

// A group more than the loader has does no harm; one less would be left without its state. The rate
// is that of the next update, which DeepSpeed's schedules set only behind it; other hyperparameters
// are those of the loader's configuration.
TorchValue optimizer_state(const Foreign& training, const std::string& version) {
  constexpr std::size_t kGroups = 64;
  const TorchValue group =
      training.lr ? TorchValue::dict({{"lr", TorchValue::of(json::Value::number(*training.lr))}})
                  : TorchValue::dict({});
  const auto groups = [&] { return TorchValue::list(std::vector<TorchValue>(kGroups, group)); };
  const std::int64_t updates = training.step - training.skipped;
  return TorchValue::dict(
      {{"overflow", TorchValue::of(json::Value::boolean(false))},
       {"ds_version", TorchValue::text(version)},
       {"param_groups", groups()},
       {"optimizer_state_dict",
        TorchValue::dict(
            {{"state",
              TorchValue::dict({{"0", TorchValue::dict({{"step", TorchValue::integer(updates)}})}},
                               true)},
             {"param_groups", groups()}})}});
}

}  // namespace

void write_universal(const fs::path& folder, const Foreign& training, const Written& written) {
  for (const char* state : {"exp_avg", "exp_avg_sq"}) {
    TESSERA_REQUIRE(training.state.count(state) > 0,
                    Config,
                    fmt::format("{} has no {}: a universal checkpoint holds a training of Adam",
                                training.path.string(),
                                state),
                    "convert a run or a checkpoint of one, or leave --to out for its weights");
  }
  // The version whose files these are.
  const std::string version = "0.19.0";
  Storage& disk = real_storage();
  const std::string tag = fmt::format("global_step{}", training.step);
  const fs::path root = folder / tag;
  disk.make_folder(root);
  disk.make_folder(root / "zero");
  const auto write_state = [&](const StreamedTensor& tensor, const std::string& state) {
    StreamedTensor plain = tensor;
    plain.aliases.clear();
    write_file(root / "zero" / tensor.name / (state + ".pt"),
               TorchValue::dict({{"cat_dim", TorchValue::integer(0)},
                                 {"param", TorchValue::tensor(std::move(plain))}}),
               written);
  };
  for (const StreamedTensor& tensor : training.weights) {
    disk.make_folder(root / "zero" / folder_name(tensor.name));
    write_state(tensor, "fp32");
    write_file(root / "zero" / tensor.name / "step.pt",
               TorchValue::integer(training.step - training.skipped));
  }
  for (const char* state : {"exp_avg", "exp_avg_sq"}) {
    for (const StreamedTensor& tensor : training.state.at(state))
      write_state(tensor, state);
  }
  write_file(root / "zero" / "optimizer_state.pt", optimizer_state(training, version));
  // Stages 0 to 2 look for the first name, stage 3 for the second.
  write_file(root / "mp_rank_00_model_states.pt", model_states(training, version));
  write_file(root / "zero_pp_rank_0_mp_rank_00_model_states.pt", model_states(training, version));
  for (const StreamedTensor& tensor : training.weights)
    disk.sync_folder(root / "zero" / tensor.name);
  disk.sync_folder(root / "zero");
  disk.sync_folder(root);
  const auto latest = disk.create(folder / "latest_universal", tag.size());
  latest->append(std::as_bytes(std::span(tag)));
  latest->sync();
}

}  // namespace tessera::checkpoint
