// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/model_source.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/hub.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/config/fields.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/huggingface/quantized_weights.h"
#include "tessera/interop/huggingface/stored_head.h"
#include "tessera/interop/label_thresholds.h"
#include "tessera/interop/peft/base.h"
#include "tessera/interop/peft/folder.h"
#include "tessera/interop/run_checkpoint.h"
#include "tessera/interop/weights.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/fingerprint.h"
#include "tessera/models/hf_objective.h"
#include "tessera/optim/average.h"
#include "tessera/tasks/conversation.h"
#include "tessera/tasks/labelled_images.h"
#include "tessera/text/small_file.h"

namespace tessera::interop {

models::ModelSource open_source(const std::filesystem::path& path);
models::WeightSource weights_of_source(const models::ModelSource& source,
                                       const models::Resolved& resolved);

namespace {

namespace fs = std::filesystem;

// True if Hugging Face's config.json says that the weights are bf16, under either key.
bool says_bf16(const json::Value& hf) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const json::Value* type = hf.find(key);
    if (type != nullptr && type->is_string()) return type->as_string() == "bfloat16";
  }
  return false;
}

// Reads the model's objective from the checkpoint's metadata; the name is empty if there is none.
models::ObjectiveChoice objective_of(const checkpoint::Meta& meta) {
  const json::Value* said = meta.extra.find("objective");
  const json::Value* name = said != nullptr && said->is_object() ? said->find("name") : nullptr;
  const json::Value* options =
      said != nullptr && said->is_object() ? said->find("options") : nullptr;
  models::ObjectiveChoice out;
  if (name != nullptr && name->is_string()) out.name = name->as_string();
  if (options != nullptr && options->is_object()) out.options = *options;
  return out;
}

// True if a block is enabled in a run's configuration.
bool is_on(const json::Value& config, const char* block) {
  const json::Value* found = config.find(block);
  const json::Value* enabled =
      found != nullptr && found->is_object() ? found->find("enabled") : nullptr;
  return enabled != nullptr && enabled->is_bool() && enabled->as_bool();
}

models::ModelSource open_hugging_face(const fs::path& folder,
                                      json::Value hf,
                                      const fs::path& weights) {
  models::ModelSource out;
  drop_quantization(hf);
  out.folder = folder;
  out.weights = weights;
  out.hugging_face = true;
  out.bf16 = says_bf16(hf);
  out.model = models::options_from_hf(hf);
  if (!weights.empty()) settle_stored_head(weights, hf, out.model);
  out.objective = models::objective_of_hf(hf);
  interop::add_label_thresholds(folder, out.objective);
  return out;
}

// Reads a section of a checkpoint's configuration; invalid values mean damage, not a user's
// mistake.
template <class S>
void read_section(const json::Value& config, const char* key, const fs::path& folder, S& options) {
  const json::Value* section = config.find(key);
  TESSERA_REQUIRE(section != nullptr && section->is_object(),
                  Format,
                  fmt::format("{}: its configuration has no {}", folder.string(), key),
                  "name another checkpoint");
  config::Problems problems;
  config::Origins origins;
  config::read(*section, options, problems, origins);
  TESSERA_REQUIRE(problems.empty(),
                  Format,
                  fmt::format("{}: {}.{}: {}",
                              folder.string(),
                              key,
                              problems.list().front().path,
                              problems.list().front().what),
                  "name another checkpoint");
}

// Reads the adapter of a checkpoint, and the base that it omits.
void read_adapter(const checkpoint::Checkpoint& opened,
                  const fs::path& folder,
                  models::ModelSource& out) {
  const json::Value& config = opened.meta().config;
  const json::Value* section = config.find("adapter");
  if (section == nullptr) return;
  read_section(config, "adapter", folder, out.adapter_options);
  if (!out.adapter_options.enabled()) return;
  out.adapter = folder;
  const json::Value* trainer = config.find("trainer");
  const json::Value* seed = trainer != nullptr ? trainer->find("seed") : nullptr;
  if (seed != nullptr) out.seed = static_cast<std::uint64_t>(seed->as_integer().value_or(0));
  const json::Value* base = opened.meta().extra.find("base");
  if (base == nullptr) {
    TESSERA_REQUIRE(out.adapter_options.quantize_base == models::QuantizedBase::None,
                    Unsupported,
                    fmt::format("{} adapts a base in fewer bits that began from the seed, which no "
                                "checkpoint holds",
                                folder.string()),
                    "go on with that run, or train on weights that model.from names");
    return;
  }
  const json::Value *path = base->find("path"), *print = base->find("fingerprint");
  TESSERA_REQUIRE(path != nullptr && path->is_string() && print != nullptr && print->is_string(),
                  Format,
                  fmt::format("{}: does not say what its adapter was trained on", folder.string()),
                  "name another checkpoint");
  TESSERA_REQUIRE(
      fs::exists(path->as_string()),
      Config,
      fmt::format(
          "{} holds an adapter of {}, which is not there", folder.string(), path->as_string()),
      "put that model back: the checkpoint has only what was trained");
  out.base = std::make_shared<const models::ModelSource>(open_source(path->as_string()));
  out.base_fingerprint = print->as_string();
}

models::ModelSource open_checkpoint(const fs::path& folder) {
  const checkpoint::Checkpoint opened(folder);
  require_family(opened.meta(), folder);
  models::ModelSource out;
  out.folder = folder;
  read_section(opened.meta().config, "model", folder, out.model);
  out.objective = objective_of(opened.meta());
  interop::add_label_thresholds(folder, out.objective);
  out.says_tokenizer = opened.meta().extra.find("imported") == nullptr ||
                       opened.meta().config.find("tokenizer") != nullptr;
  if (out.says_tokenizer) read_section(opened.meta().config, "tokenizer", folder, out.tokenizer);
  // A converted checkpoint contains its tokenizer; its source may no longer exist.
  const auto brought = text::find_bpe(folder);
  if (brought && out.tokenizer.type == "gpt2") out.tokenizer = *brought;
  if (out.tokenizer.type == "file") {
    const fs::path own = folder / fs::path(out.tokenizer.vocab).filename();
    if (fs::exists(own)) out.tokenizer.vocab = own.string();
  }
  out.model->from.reset();
  out.chat_template = tasks::chat_template_of(opened.meta().config);
  out.preprocessing = tasks::preprocessing_name_of(opened.meta().config);
  out.bf16 = is_on(opened.meta().config, "bf16");
  read_adapter(opened, folder, out);
  return out;
}

bool has_content(const fs::path& path, const std::string& content) {
  std::error_code absent;
  return fs::is_regular_file(path, absent) && fs::file_size(path, absent) == content.size() &&
         files::read(path) == content;
}

// Writes the files contained in a single file to a cache folder that is named by their contents.
fs::path unpacked(const std::vector<std::pair<std::string, std::string>>& files) {
  files::Hasher hasher;
  for (const auto& [name, content] : files) {
    hasher.update(std::as_bytes(std::span(name)));
    hasher.update(std::as_bytes(std::span(content)));
  }
  const fs::path folder = files::cache_dir() / "tokenizers" / files::hex64(hasher.digest());
  std::error_code failed;
  fs::create_directories(folder, failed);
  TESSERA_REQUIRE(!failed,
                  Io,
                  fmt::format("cannot create {}: {}", folder.string(), failed.message()),
                  "name a folder that can be written: TESSERA_CACHE=/some/folder");
  for (const auto& [name, content] : files) {
    if (!has_content(folder / name, content)) files::write_atomic(folder / name, content);
  }
  return folder;
}

// Another program's checkpoint describes its shape in its own format, or in a config.json next to
// it.
models::ModelSource open_foreign_source(const fs::path& path) {
  const Foreign opened = *open_foreign(path);
  models::ModelSource out;
  if (opened.model_config.is_object()) {
    out = open_hugging_face(
        fs::is_directory(path) ? path : path.parent_path(), opened.model_config, {});
    if (!opened.beside.empty()) out.folder = unpacked(opened.beside);
    out.foreign = path;
    return out;
  }
  const fs::path real = fs::absolute(path).lexically_normal();
  for (const fs::path& folder : {real, real.parent_path(), real.parent_path().parent_path()}) {
    const fs::path file = folder / "config.json";
    if (!fs::is_regular_file(file)) continue;
    out = open_hugging_face(
        folder, json::parse_strict(text::read_small_file(file), file.string()), {});
    out.foreign = path;
    return out;
  }
  throw Error(Error::Kind::Format,
              fmt::format("{} is {}, and no config.json next to it says the model's shape",
                          path.string(),
                          opened.what),
              "put Hugging Face's config.json of the model into its folder");
}

// `weights`: the folder, or a single file of it.
models::ModelSource open_folder(const fs::path& folder, const fs::path& weights) {
  const fs::path file = folder / "config.json";
  TESSERA_REQUIRE(
      fs::exists(file),
      Format,
      fmt::format("{} has no config.json, manifest.json or checkpoints", folder.string()),
      "name a Hugging Face folder, or a run or checkpoint of tessera");
  return open_hugging_face(
      folder, json::parse_strict(text::read_small_file(file), file.string()), weights);
}

// A PEFT folder: the model that it adapts, merged with the adapter.
models::ModelSource open_peft_source(const fs::path& folder) {
  const PeftFolder peft = open_peft(folder);
  const fs::path base = base_of(peft);
  TESSERA_REQUIRE(
      !is_peft(base),
      Unsupported,
      fmt::format("{} adapts {}, which is an adapter itself", folder.string(), base.string()),
      "merge that one first: tessera adapter merge");
  auto source = std::make_shared<const models::ModelSource>(open_source(base));
  models::ModelSource out = *source;
  out.base = std::move(source);
  out.adapter = folder;
  out.adapter_options = peft.options;
  fit_to_adapter(peft, out);
  return out;
}

// Weights only reveal the shapes of the model; the rest is in files next to them.
models::ModelSource open_lone_file(const fs::path& path) {
  const fs::path folder = fs::absolute(path).parent_path();
  TESSERA_REQUIRE(
      fs::exists(folder / "config.json"),
      Format,
      fmt::format("{}: no config.json next to it says the model's shape", path.string()),
      "put Hugging Face's config.json and tokenizer files of the model into its folder");
  return open_folder(folder, path);
}

// A checkpoint as a source of weights: the requested range is one piece of the whole tensor.
void load_range(const checkpoint::Checkpoint& from,
                const std::string& tensor,
                const ParamInfo& info,
                std::int64_t begin,
                std::int64_t end,
                float* out) {
  const std::size_t bytes = static_cast<std::size_t>(end - begin) * sizeof(float);
  checkpoint::PieceBytes piece;
  piece.name = tensor;
  piece.shape = info.shape;
  piece.piece = {mesh::whole(info.shape), begin, end};
  piece.bytes = {reinterpret_cast<std::byte*>(out), bytes};
  from.load(std::span(&piece, 1));
}

}  // namespace

bool is_foreign_source(const fs::path& path) {
  if (checkpoint::is_ours(path)) return false;
  if (fs::is_directory(path) && !weight_files(path).empty()) return false;
  return is_foreign(path);
}

void require_family(const checkpoint::Meta& meta, const fs::path& folder) {
  const json::Value* const model = meta.config.find("model");
  if (model == nullptr || !model->is_object() || model->members().empty()) return;
  // Such a model is described by the shapes of its parameters.
  for (const auto& [name, shape] : model->members())
    if (!shape.is_array()) return;
  throw Error(Error::Kind::Unsupported,
              fmt::format("{} holds the model of a program that uses the library ({} and {} other "
                          "parameters): its blocks are in that program only",
                          folder.string(),
                          model->members().front().first,
                          model->members().size() - 1),
              "let the program do it: engine->load() reads the checkpoint, engine->evaluate() "
              "measures it, engine->state().infer() predicts (docs/library.md)");
}

namespace {

/// Returns the fix of an error about a model that is not a folder.
std::string fix_of_missing(const fs::path& path) {
  const std::string again =
      "a run that has begun goes on without it: tessera train RUN/config.json --set "
      "model.from=null";
  if (hub::is_model_name(path.string()))
    return fmt::format("{}; {}", hub::how_to_fetch(path.string()), again);
  return "name a Hugging Face folder, or a run or checkpoint of tessera; " + again;
}

}  // namespace

models::ModelSource open_source(const fs::path& path) {
  if (is_foreign_source(path)) return open_foreign_source(path);
  if (is_weight_file(path)) return open_lone_file(path);
  std::error_code failed;
  TESSERA_REQUIRE(!fs::is_regular_file(path, failed),
                  Config,
                  fmt::format("{} is not a file of weights (.safetensors, .bin, .pt, .pth, .gguf)",
                              path.string()),
                  "name one of these, or the folder of the model");
  TESSERA_REQUIRE(
      fs::is_directory(path),
      Config,
      fmt::format("there is no folder {}{}",
                  path.string(),
                  hub::is_model_name(path.string())
                      ? ", and no model of that name on this machine (tessera models lists them)"
                      : ""),
      fix_of_missing(path));
  if (checkpoint::is_ours(path)) {
    TESSERA_REQUIRE(checkpoint::newest_at(path).has_value(),
                    Format,
                    fmt::format("the run {} has no complete checkpoint", path.string()),
                    "name another run");
    const ChosenCheckpoint chosen = chosen_checkpoint(path);
    models::ModelSource out = open_checkpoint(chosen.path);
    out.chosen = chosen.why;
    if (!chosen.newest.empty()) out.chosen += "; the newest is " + chosen.newest.string();
    return out;
  }
  if (is_peft(path)) return open_peft_source(path);
  return open_folder(path, path);
}

namespace {

// The base with the adapter merged into it.
models::WeightSource adapted_weights(const models::ModelSource& source,
                                     const models::Resolved& resolved) {
  const models::WeightMap& map = models::families().get(source.model.family()).weight_map;
  const models::Adapter adapter =
      models::find_adapter(source.adapter_options, resolved, map, models::AdapterUse::Merged);
  std::vector<std::string> notes;
  if (is_peft(source.adapter)) {
    return models::merged_weights(adapter,
                                  base_weights_for(*source.base, resolved, source.seed, notes),
                                  peft_weights(open_peft(source.adapter), adapter, map));
  }
  const auto opened = std::make_shared<const checkpoint::Checkpoint>(source.adapter);
  const models::WeightSource saved =
      [opened](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
        load_range(*opened, info.name, info, begin, end, out);
      };
  if (source.base == nullptr) return models::merged_weights(adapter, saved, saved);
  models::WeightSource base = models::first_weights(*source.base, resolved, source.seed, notes);
  TESSERA_REQUIRE(models::fingerprint_of(resolved, base) == source.base_fingerprint,
                  Format,
                  fmt::format("{} was trained on another model than {} is now",
                              source.adapter.string(),
                              source.base->folder.string()),
                  "put the base back as it was");
  return models::merged_weights(adapter, std::move(base), saved);
}

}  // namespace

models::WeightSource weights_of_source(const models::ModelSource& source,
                                       const models::Resolved& resolved) {
  if (!source.adapter.empty()) return adapted_weights(source, resolved);
  if (source.foreign) {
    return weights_of(open_foreign(*source.foreign)->weights,
                      models::families().get(source.model.family()),
                      resolved,
                      source.foreign->string());
  }
  if (source.hugging_face)
    return weights_from_hf(source.weights, models::families().get(source.model.family()), resolved);
  auto opened = std::make_shared<const checkpoint::Checkpoint>(source.folder);
  return [opened](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    load_range(*opened, info.name, info, begin, end, out);
  };
}

models::WeightSource averaged_weights(const fs::path& checkpoint) {
  auto opened = std::make_shared<const checkpoint::Checkpoint>(checkpoint);
  const std::string prefix = fmt::format("optimizer.{}.", optim::kAverageState);
  const auto& tensors = opened->tensors();
  TESSERA_REQUIRE(std::any_of(tensors.begin(),
                              tensors.end(),
                              [&](const auto& tensor) { return tensor.name.starts_with(prefix); }),
                  Config,
                  fmt::format("{} has no average of the weights", checkpoint.string()),
                  "train with trainer.ema.decay, or take the weights that were trained");
  return [opened, prefix](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    const std::string average = prefix + info.name;
    load_range(*opened, opened->has(average) ? average : info.name, info, begin, end, out);
  };
}

namespace {

/// The files of a checkpoint that decide its contents. Parts on the disks of hosts differ.
std::vector<fs::path> checkpoint_files(const fs::path& folder) {
  std::error_code unknown;
  const fs::path manifest = folder / checkpoint::kManifestName;
  if (!fs::exists(manifest, unknown)) return {};
  return {manifest};
}

/// The files of another program's checkpoint: all of its folder, or a file with the others of its
/// number, as in model-00001-of-00003.gguf.
std::vector<fs::path> foreign_files(const fs::path& path) {
  std::vector<fs::path> out;
  std::error_code unknown;
  if (fs::is_directory(path, unknown)) {
    for (fs::recursive_directory_iterator at(path, unknown), end; !unknown && at != end;
         at.increment(unknown)) {
      std::error_code ignored;
      if (!at->path().filename().string().starts_with('.') && at->is_regular_file(ignored))
        out.push_back(at->path());
    }
  } else {
    const std::string name = path.filename().string();
    const std::size_t of = name.rfind("-of-");
    for (fs::directory_iterator at(fs::absolute(path).parent_path(), unknown), end;
         of != std::string::npos && !unknown && at != end;
         at.increment(unknown)) {
      if (at->path().filename().string().ends_with(name.substr(of))) out.push_back(at->path());
    }
    if (out.empty()) out.push_back(path);
  }
  std::ranges::sort(out);
  return out;
}

std::vector<fs::path> files_of_adapter(const fs::path& folder) {
  std::vector<fs::path> out = {folder / "adapter_config.json"};
  std::error_code unknown;
  for (const char* name : {"adapter_model.safetensors", "adapter_model.bin"}) {
    if (fs::exists(folder / name, unknown)) {
      out.push_back(folder / name);
      break;
    }
  }
  return out;
}

std::vector<fs::path> files_of_source(const models::ModelSource& source) {
  std::vector<fs::path> out;
  const auto add = [&](const std::vector<fs::path>& more) {
    out.insert(out.end(), more.begin(), more.end());
  };
  if (!source.adapter.empty()) {
    if (source.base != nullptr) add(files_of_source(*source.base));
    add(is_peft(source.adapter) ? files_of_adapter(source.adapter)
                                : checkpoint_files(source.adapter));
  } else if (source.foreign) {
    add(foreign_files(*source.foreign));
  } else if (source.hugging_face) {
    add({source.folder / "config.json"});
    add(weight_files(source.weights));
  } else {
    add(checkpoint_files(source.folder));
  }
  return out;
}

const bool kRegistered = models::model_readers().add(
    "files",
    models::ModelReader{
        open_source,
        weights_of_source,
        [](const fs::path& folder) { return open_peft(folder).options; },
        [](const fs::path& folder, const models::Adapter& adapter, const models::WeightMap& map) {
          return peft_weights(open_peft(folder), adapter, map);
        },
        files_of_source,
        files_of_adapter});
}  // namespace

}  // namespace tessera::interop
