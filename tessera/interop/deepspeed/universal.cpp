// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's universal checkpoints: a folder per parameter, a file per value. Byte layout:
// docs/formats/deepspeed.md.
#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/storage.h"
#include "tessera/interop/deepspeed/states.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/foreign_write.h"
#include "tessera/interop/torch/file.h"
#include "tessera/interop/torch/value.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using deepspeed::Parameter;

constexpr const char* kCopy =
    "the checkpoint is damaged or incomplete: copy all of its files again";

std::optional<fs::path> tag_folder(const fs::path& path) {
  std::error_code failed;
  if (fs::is_directory(path / "zero", failed)) return path;
  const auto tag = deepspeed::tag_in(path / "latest_universal");
  if (!tag || !fs::is_directory(path / *tag / "zero", failed)) return std::nullopt;
  return path / *tag;
}

bool recognises(const fs::path& path) {
  try {
    return tag_folder(path).has_value();
  } catch (const std::exception&) {
    return false;
  }
}

/// Information about the training besides its parameters; nothing if the file is missing.
struct States {
  fs::path file;
  json::Value values;
  std::map<std::string, Parameter> shapes;
  std::map<std::string, std::string> aliases;
};

std::optional<States> states_in(const fs::path& folder) {
  std::vector<fs::path> models;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().ends_with("_model_states.pt"))
      models.push_back(entry.path());
  }
  if (models.empty()) return std::nullopt;
  States out;
  out.file = *std::min_element(models.begin(), models.end());
  out.values = read_torch_file(out.file).values;
  std::vector<std::vector<Parameter>> groups;
  if (const json::Value* shapes = at_path(out.values, "param_shapes"))
    groups = deepspeed::groups_of(out.file, *shapes);
  if (const json::Value* frozen = at_path(out.values, "frozen_param_shapes");
      frozen != nullptr && !frozen->is_null()) {
    groups.push_back(deepspeed::shapes_of(out.file, *frozen));
  }
  for (auto& group : groups) {
    for (Parameter& parameter : group)
      out.shapes.emplace(parameter.name, std::move(parameter));
  }
  out.aliases = deepspeed::aliases_of(out.values);
  return out;
}

/// The tensor of fp32.pt and similar files: bare, or in a dict under "param".
Weight tensor_in(const fs::path& path) {
  const TorchContents contents = read_torch_file(path);
  for (const Weight& weight : contents.tensors) {
    if (weight.name.empty() || weight.name == "param") return weight;
  }
  throw Error(Error::Kind::Format, path.string() + ": holds no tensor \"param\"", kCopy);
}

/// Stage 3 stores its tensors bare and flat; their shapes are in the model_states.
std::vector<std::int64_t> shape_of(const Weight& weight,
                                   const std::string& name,
                                   const std::optional<States>& states) {
  const bool is_listed = states && states->shapes.count(name) > 0;
  if (weight.shape.size() > 1 || (!weight.name.empty() && !is_listed)) return weight.shape;
  TESSERA_REQUIRE(is_listed,
                  Format,
                  fmt::format("{}: is flat, and no model_states next to zero/ say the shape of {}",
                              weight.file.string(),
                              name),
                  kCopy);
  const Parameter& listed = states->shapes.at(name);
  TESSERA_REQUIRE(listed.numel == weight.numel(),
                  Format,
                  fmt::format("{}: has {} elements, and {} says that {} is [{}]",
                              weight.file.string(),
                              weight.numel(),
                              states->file.string(),
                              name,
                              fmt::join(listed.shape, ", ")),
                  kCopy);
  return listed.shape;
}

std::optional<std::int64_t> step_in(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  const TorchContents contents = read_torch_file(path);
  const std::string name = contents.tensors.size() == 1 ? contents.tensors.front().name : "";
  return count_at(Named(contents.tensors), contents.values, name, path);
}

void add_meta(Foreign& out,
              const fs::path& folder,
              const std::optional<States>& states,
              std::optional<std::int64_t> updates) {
  out.step = updates.value_or(0);
  if (!states) return;
  out.files += 1;
  const json::Value& values = states->values;
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
  out.parameters = deepspeed::parameters_of(values);
}

/// True if `copy` equals `master`, or its rounding in a 16-bit module.
bool is_copy(const checkpoint::StreamedTensor& master, const checkpoint::StreamedTensor& copy) {
  if (master.shape != copy.shape || master.dtype != DType::F32 || copy.dtype != DType::F32)
    return false;
  constexpr std::int64_t kElements = 1 << 18;
  const auto numel = static_cast<std::int64_t>(master.bytes() / sizeof(float));
  std::vector<float> a, b;
  bool same = true, bf16 = true, fp16 = true;
  for (std::int64_t at = 0; at < numel && (same || bf16 || fp16); at += kElements) {
    const std::int64_t end = std::min(at + kElements, numel);
    a.resize(static_cast<std::size_t>(end - at));
    b.resize(a.size());
    master.read(at, end, reinterpret_cast<std::byte*>(a.data()));
    copy.read(at, end, reinterpret_cast<std::byte*>(b.data()));
    const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
    for (std::size_t i = 0; i < a.size(); ++i) {
      same = same && bits(a[i]) == bits(b[i]);
      bf16 = bf16 && bits(from_bf16(to_bf16(a[i]))) == bits(b[i]);
      fp16 = fp16 && bits(from_fp16(to_fp16(a[i]))) == bits(b[i]);
    }
  }
  return same || bf16 || fp16;
}

/// Stage 3 omits frozen parameters, and a copied checkpoint may lack folders.
void require_all(const Foreign& out, const fs::path& folder, const std::optional<States>& states) {
  if (!states) return;
  std::set<std::string> found;
  for (const checkpoint::StreamedTensor& tensor : out.weights)
    found.insert(tensor.name);
  for (const auto& [name, parameter] : states->shapes) {
    TESSERA_REQUIRE(found.count(name) > 0 || states->aliases.count(name) > 0,
                    Format,
                    fmt::format("{} has no folder of {}, which {} lists",
                                (folder / "zero").string(),
                                name,
                                states->file.string()),
                    "copy all of its files again; frozen parameters of stage 3 are in the "
                    "checkpoint that it was made of: read that one");
  }
}

/// For a tied tensor, stages 1 and 2 write a second copy without moments, which is treated as an
/// alias.
void take_aliases(Foreign& out, const std::optional<States>& states) {
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < out.weights.size(); ++i)
    places.emplace(out.weights[i].name, i);
  std::set<std::string> trained;
  for (const auto& [state, tensors] : out.state) {
    for (const checkpoint::StreamedTensor& tensor : tensors)
      trained.insert(tensor.name);
  }
  std::set<std::string> dropped;
  for (const auto& [alias, name] :
       states ? states->aliases : std::map<std::string, std::string>()) {
    const auto source = places.find(name), copy = places.find(alias);
    if (source == places.end() || states->aliases.count(name) > 0) continue;
    out.weights[source->second].aliases.push_back(alias);
    if (copy == places.end()) continue;
    TESSERA_REQUIRE(
        trained.count(alias) == 0 &&
            is_copy(out.weights[source->second], out.weights[copy->second]),
        Format,
        fmt::format("{} says that {} is {}, and zero/ holds another tensor of that name",
                    states->file.string(),
                    alias,
                    name),
        kCopy);
    dropped.insert(alias);
  }
  // False if the model_states are missing, or too old to contain it.
  const bool said = states && at_path(states->values, "shared_params") != nullptr;
  for (const checkpoint::StreamedTensor& copy : out.weights) {
    if (said || trained.empty() || trained.count(copy.name) > 0) continue;
    const auto source = std::find_if(
        out.weights.begin(), out.weights.end(), [&](const checkpoint::StreamedTensor& other) {
          return trained.count(other.name) > 0 && copy.bytes() > 0 && is_copy(other, copy);
        });
    if (source == out.weights.end()) continue;
    source->aliases.push_back(copy.name);
    dropped.insert(copy.name);
  }
  std::erase_if(out.weights, [&](const checkpoint::StreamedTensor& tensor) {
    return dropped.count(tensor.name) > 0;
  });
}

Foreign open(const fs::path& path) {
  Foreign out;
  const fs::path folder = *tag_folder(path);
  std::vector<fs::path> parameters;
  for (const auto& entry : fs::directory_iterator(folder / "zero")) {
    if (entry.is_directory()) parameters.push_back(entry.path());
  }
  std::sort(parameters.begin(), parameters.end());
  const std::optional<States> states = states_in(folder);
  UpdateCounts updates;
  for (const fs::path& parameter : parameters) {
    const std::string name = parameter.filename().string();
    TESSERA_REQUIRE(fs::exists(parameter / "fp32.pt"),
                    Format,
                    fmt::format("{} has no fp32.pt", parameter.string()),
                    kCopy);
    const Weight weight = tensor_in(parameter / "fp32.pt");
    const auto shape = shape_of(weight, name, states);
    out.weights.push_back(join(name, shape, {{weight, 0, weight.numel()}}, weight.file.string()));
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
      out.state[state].push_back(
          join(name, shape, {{moment, 0, moment.numel()}}, entry.path().string()));
    }
    updates.add(name, step_in(parameter / "step.pt"));
  }
  TESSERA_REQUIRE(updates.difference().empty(),
                  Unsupported,
                  fmt::format("{}: of its optimizer's state {}: a training goes on from one count",
                              (folder / "zero").string(),
                              updates.difference()),
                  "make it universal again from the checkpoint that it was made of");
  TESSERA_REQUIRE(!out.weights.empty(),
                  Format,
                  fmt::format("{} has no parameters", (folder / "zero").string()),
                  kCopy);
  out.path = path;
  if (const fs::path common = folder / "zero" / "optimizer_state.pt"; fs::exists(common)) {
    out.lr = number_at(read_torch_file(common).values, "param_groups.0.lr");
    ++out.files;
  }
  require_all(out, folder, states);
  add_meta(out, folder, states, updates.first());
  take_aliases(out, states);
  out.what = "a universal checkpoint of DeepSpeed";
  return out;
}

TESSERA_FOREIGN_FORMAT(std::string(kUniversalFormat), (ForeignFormat{recognises, open}));

/// The moments that are written.
constexpr std::array<const char*, 2> kMoments = {"exp_avg", "exp_avg_sq"};

/// A parameter's name, checked for use as a folder name.
const std::string& folder_name(const std::string& name) {
  TESSERA_REQUIRE(!name.empty() && name != "." && name != ".." &&
                      name.find('/') == std::string::npos && name.size() < 250,
                  Unsupported,
                  fmt::format("a parameter \"{}\" cannot be the name of a folder", name),
                  "write another format");
  return name;
}

void write_file(
    const fs::path& path,
    const TorchValue& value,
    const checkpoint::Written& written = [](std::uint64_t) {}) {
  write_torch_file(path, value, written);
}

TorchValue shapes_of(const std::vector<checkpoint::StreamedTensor>& weights) {
  std::vector<TorchValue::Item> shapes;
  for (const checkpoint::StreamedTensor& tensor : weights)
    shapes.emplace_back(tensor.name, TorchValue::size(tensor.shape));
  std::vector<TorchValue> groups;
  groups.push_back(TorchValue::ordered(std::move(shapes)));
  return TorchValue::list(std::move(groups));
}

TorchValue aliases_of(const std::vector<checkpoint::StreamedTensor>& weights) {
  std::vector<TorchValue::Item> out;
  for (const checkpoint::StreamedTensor& tensor : weights) {
    for (const std::string& alias : tensor.aliases)
      out.emplace_back(alias, TorchValue::text(tensor.name));
  }
  return TorchValue::dict(std::move(out));
}

// The entries that DeepSpeed's engine reads from the file before it reads zero/.
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

// A surplus group is harmless for the loader; a missing one would leave a group without state. The
// learning rate is that of the next update, which DeepSpeed's schedules only set after it; other
// hyperparameters come from the loader's configuration.
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

constexpr const char* kOthers =
    "write model_N.pth for a loop of torch, or leave --to out for the weights";

/// DeepSpeed reads from a universal checkpoint only what its optimizer trains: frozen parameters
/// would keep their initial weights.
void require_all_trained(const Foreign& training, const char* state) {
  const std::set<std::string> named(training.parameters.begin(), training.parameters.end());
  std::set<std::string> trained;
  for (const checkpoint::StreamedTensor& tensor : training.state.at(state))
    trained.insert(tensor.name);
  std::vector<std::string> frozen;
  for (const checkpoint::StreamedTensor& tensor : training.weights) {
    const bool is_parameter =
        (named.empty() || named.count(tensor.name) > 0) && !is_stored_buffer(tensor.name);
    if (is_parameter && trained.count(tensor.name) == 0) frozen.push_back(tensor.name);
  }
  TESSERA_REQUIRE(
      frozen.empty(),
      Unsupported,
      fmt::format("{} has no {} of {}: DeepSpeed takes no weights of frozen parameters from a "
                  "universal checkpoint",
                  training.path.string(),
                  state,
                  text::join_some(frozen, ", ")),
      kOthers);
}

}  // namespace

std::uint64_t universal_bytes(const Foreign& training) {
  std::uint64_t total = 0;
  for (const checkpoint::StreamedTensor& tensor : training.weights)
    total += tensor.bytes();
  for (const char* state : kMoments) {
    const auto found = training.state.find(state);
    if (found == training.state.end()) continue;
    for (const checkpoint::StreamedTensor& tensor : found->second)
      total += tensor.bytes();
  }
  return total;
}

void write_universal(const fs::path& folder,
                     const Foreign& training,
                     const checkpoint::Written& written) {
  for (const char* state : kMoments) {
    TESSERA_REQUIRE(training.state.count(state) > 0,
                    Config,
                    fmt::format("{} has no {}: a universal checkpoint holds a training of Adam",
                                training.path.string(),
                                state),
                    "convert a run or a checkpoint of one, or leave --to out for its weights");
    require_all_trained(training, state);
  }
  TESSERA_REQUIRE(
      training.began.empty(),
      Unsupported,
      fmt::format("{}: the state of {} began after {} updates, and DeepSpeed counts the "
                  "same of all parameters",
                  training.path.string(),
                  training.began.begin()->first,
                  training.began.begin()->second),
      kOthers);
  // The DeepSpeed version of the file format.
  const std::string version = "0.19.0";
  checkpoint::Storage& disk = checkpoint::real_storage();
  const std::string tag = fmt::format("global_step{}", training.step);
  const fs::path root = folder / tag;
  disk.make_folder(root);
  disk.make_folder(root / "zero");
  const auto write_state = [&](const checkpoint::StreamedTensor& tensor, const std::string& state) {
    checkpoint::StreamedTensor plain = tensor;
    plain.aliases.clear();
    write_file(root / "zero" / tensor.name / (state + ".pt"),
               TorchValue::dict({{"cat_dim", TorchValue::integer(0)},
                                 {"param", TorchValue::tensor(std::move(plain))}}),
               written);
  };
  for (const checkpoint::StreamedTensor& tensor : training.weights) {
    disk.make_folder(root / "zero" / folder_name(tensor.name));
    write_state(tensor, "fp32");
    write_file(root / "zero" / tensor.name / "step.pt",
               TorchValue::integer(training.step - training.skipped));
  }
  for (const char* state : kMoments) {
    for (const checkpoint::StreamedTensor& tensor : training.state.at(state))
      write_state(tensor, state);
  }
  write_file(root / "zero" / "optimizer_state.pt", optimizer_state(training, version));
  // Stages 0 to 2 look for the first name, stage 3 for the second.
  write_file(root / "mp_rank_00_model_states.pt", model_states(training, version));
  write_file(root / "zero_pp_rank_0_mp_rank_00_model_states.pt", model_states(training, version));
  for (const checkpoint::StreamedTensor& tensor : training.weights)
    disk.sync_folder(root / "zero" / tensor.name);
  disk.sync_folder(root / "zero");
  disk.sync_folder(root);
  const auto latest = disk.create(folder / "latest_universal", tag.size());
  latest->append(std::as_bytes(std::span(tag)));
  latest->sync();
}

}  // namespace tessera::interop
