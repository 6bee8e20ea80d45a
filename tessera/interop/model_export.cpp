// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/model_export.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/streamed_save.h"
#include "tessera/interop/foreign_training.h"
#include "tessera/interop/huggingface/decoder_padding.h"
#include "tessera/interop/huggingface/preprocessing_file.h"
#include "tessera/interop/huggingface/quantized_weights.h"
#include "tessera/interop/huggingface/token_ids.h"
#include "tessera/interop/huggingface/tokenizer_files.h"
#include "tessera/interop/model_source.h"
#include "tessera/interop/peft/base.h"
#include "tessera/interop/peft/folder.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/hf_objective.h"
#include "tessera/models/objective.h"
#include "tessera/optim/schedule.h"
#include "tessera/parallel/state_beginnings.h"
#include "tessera/tasks/conversation.h"
#include "tessera/tasks/labelled_images.h"
#include "tessera/tasks/record_fields.h"
#include "tessera/text/small_file.h"
#include "tessera/text/tokenizer_json.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using checkpoint::StreamedTensor;

bool is_float(DType dtype) {
  return dtype == DType::F64 || dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16;
}

const char* torch_name(DType dtype) {
  if (dtype == DType::BF16) return "bfloat16";
  return dtype == DType::F16 ? "float16" : "float32";
}

bool is_infinite(DType dtype, const std::byte* element) {
  double value = 0;
  checkpoint::convert(dtype, element, DType::F64, reinterpret_cast<std::byte*>(&value), 1);
  return std::isinf(value);
}

/// Converts to a narrower dtype; counts finite numbers that become infinite under the tensor's
/// name.
void narrow(const std::string& name,
            DType from,
            const std::byte* in,
            DType to,
            std::byte* out,
            std::int64_t count,
            Overflows* overflows) {
  checkpoint::convert(from, in, to, out, count);
  if (overflows == nullptr || from == to || to == DType::F64) return;
  const std::uint32_t mask = to == DType::F32 ? 0x7FFFFFFF : 0x7FFF;
  const std::uint32_t infinity = to == DType::F16    ? 0x7C00
                                 : to == DType::BF16 ? 0x7F80
                                                     : 0x7F800000;
  const std::size_t width = size_of(to);
  std::int64_t lost = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, out + i * width, width);
    if ((bits & mask) == infinity && !is_infinite(from, in + i * size_of(from))) ++lost;
  }
  if (lost > 0) (*overflows)[name] += lost;
}

using Read = std::function<void(std::int64_t, std::int64_t, std::byte*)>;
using SharedOverflows = std::shared_ptr<Overflows>;

/// Reads a parameter as the source of a part of an exported tensor. If the tensor does not have the
/// parameter's order, the whole parameter is held in fp32 while the tensor is read.
models::ReadFloats parameter_reader(const models::WeightSource& weights,
                                    const models::TheirTensor::Part& part,
                                    const std::shared_ptr<std::vector<float>>& whole) {
  if (part.copy.in_order()) {
    return [&weights, &part](std::int64_t begin, std::int64_t end, float* out) {
      weights(*part.info, begin, end, out);
    };
  }
  if (whole->empty()) {
    whole->resize(static_cast<std::size_t>(part.info->numel()));
    weights(*part.info, 0, part.info->numel(), whole->data());
  }
  return [whole](std::int64_t begin, std::int64_t end, float* out) {
    std::copy(whole->begin() + begin, whole->begin() + end, out);
  };
}

/// Reads an exported tensor from tessera's parameters.
Read read_tensor(const models::WeightSource& weights,
                 const models::TheirTensor& theirs,
                 DType dtype,
                 const SharedOverflows& overflows) {
  std::vector<std::shared_ptr<std::vector<float>>> held;
  std::int64_t numel = 0;
  for (const models::TheirTensor::Part& part : theirs.parts) {
    held.push_back(std::make_shared<std::vector<float>>());
    numel += part.copy.numel();
  }
  return [=](std::int64_t begin, std::int64_t end, std::byte* out) {
    std::vector<float> piece(static_cast<std::size_t>(end - begin));
    for (std::size_t i = 0; i < theirs.parts.size(); ++i) {
      const models::TheirTensor::Part& part = theirs.parts[i];
      if (!part.copy.meets(begin, end)) continue;
      models::copy_range(
          part.copy, begin, end, parameter_reader(weights, part, held[i]), piece.data());
    }
    for (const auto& whole : held) {
      if (end == numel) std::vector<float>().swap(*whole);
    }
    narrow(theirs.name,
           DType::F32,
           reinterpret_cast<const std::byte*>(piece.data()),
           dtype,
           out,
           end - begin,
           overflows.get());
  };
}

/// Number of ids of the source's tokenizer; the whole vocabulary if the source does not describe
/// one.
std::int64_t tokenizer_size(const models::ModelSource& source) {
  if (source.says_tokenizer && !source.hugging_face)
    return models::source_tokenizer(source)->size();
  return source.model->vocab_size.value_or(text::make_tokenizer({})->size());
}

models::Resolved resolve(const models::ModelSource& source, std::int64_t tokenizer_size) {
  config::Problems problems;
  models::Resolved resolved =
      models::resolve(source.model, tokenizer_size, std::nullopt, problems, {}, source.objective);
  problems.raise();
  return resolved;
}

/// Writes the model's objective into the checkpoint's metadata, unless it is causal_lm.
void checkpoint_objective(checkpoint::Meta& meta, const models::Resolved& resolved) {
  if (auto said = models::said_of(resolved.objective)) meta.extra["objective"] = std::move(*said);
}

using models::Parameters;

const models::Family& family_of(const models::ModelSource& source) {
  return models::families().get(source.model.family());
}

/// tessera's tensors under Hugging Face's names, as `dtype`.
std::vector<StreamedTensor> renamed(const models::WeightSource& weights,
                                    const models::ModelSource& source,
                                    const Parameters& parameters,
                                    DType dtype,
                                    const SharedOverflows& overflows = nullptr) {
  std::vector<StreamedTensor> out;
  for (models::TheirTensor& theirs :
       models::their_tensors(family_of(source).weight_map, parameters)) {
    auto read = read_tensor(weights, theirs, dtype, overflows);
    out.push_back({theirs.name, dtype, theirs.shape, std::move(read), theirs.aliases});
  }
  return out;
}

/// The files that accompany weights in a Hugging Face folder; they are copied unchanged.
constexpr std::array<const char*, 15> kBesideWeights = {"generation_config.json",
                                                        "tokenizer.json",
                                                        "tokenizer_config.json",
                                                        "vocab.json",
                                                        "merges.txt",
                                                        "vocab.txt",
                                                        "tokenizer.model",
                                                        "spiece.model",
                                                        "sentencepiece.bpe.model",
                                                        "spm.model",
                                                        "chat_template.jinja",
                                                        tasks::kPreprocessorFile,
                                                        tasks::kRecordFieldsFile,
                                                        "special_tokens_map.json",
                                                        "added_tokens.json"};

/// Adds the file that says how the run read its records, unless a converted checkpoint brought one.
void add_record_fields(const fs::path& checkpoint,
                       std::vector<std::pair<std::string, std::string>>& files) {
  const auto text = tasks::record_fields_text(checkpoint::Checkpoint(checkpoint).meta().config);
  if (!text) return;
  std::erase_if(files, [](const auto& file) { return file.first == tasks::kRecordFieldsFile; });
  files.emplace_back(tasks::kRecordFieldsFile, *text);
}

/// Writes what the checkpoint says of token ids to an exported config.json, and the training's
/// seed.
void say_again(json::Value& config, const fs::path& checkpoint) {
  const checkpoint::Checkpoint opened(checkpoint);
  if (const json::Value* const seed = at_path(opened.meta().config, "trainer.seed"))
    config["seed"] = *seed;
  const json::Value* ids = at_path(opened.meta().extra, "hugging_face.token_ids");
  if (ids == nullptr || !ids->is_object()) return;
  for (const auto& [key, id] : ids->members())
    config[key] = id;
}

ModelExport of_checkpoint(const models::ModelSource& source,
                          std::optional<DType> wanted,
                          bool averaged) {
  const DType dtype = wanted.value_or(DType::F32);
  const models::Resolved resolved = resolve(source, tokenizer_size(source));
  ModelExport out;
  json::Value config = family_of(source).to_hf(*source.model);
  models::say_objective(config, resolved.objective);
  config["torch_dtype"] = json::Value::string(torch_name(dtype));
  out.tensors =
      renamed(averaged ? averaged_weights(source.folder) : models::source_weights(source, resolved),
              source,
              nn::parameters_of(resolved.model),
              dtype,
              out.overflows);
  // A converted checkpoint keeps the files with which it came; no others are generated.
  out.files = files_beside(source.folder);
  const bool brought = !out.files.empty();
  if (source.says_tokenizer) {
    const json::Value generation = token_ids_of(source);
    for (const auto& [key, id] : generation.members())
      config[key] = id;
    if (!brought) out.files.emplace_back("generation_config.json", generation.dump(2) + "\n");
    if (!brought) add_tokenizer_files(out.files, source.tokenizer, resolved.max_positions);
  }
  if (!source.chat_template.empty()) {
    const std::string name = "chat_template.jinja";
    std::erase_if(out.files, [&](const auto& file) { return file.first == name; });
    out.files.emplace_back(name, tasks::chat_template_text(source.chat_template));
  }
  if (source.preprocessing) add_preprocessing(out.files, *source.preprocessing, config);
  say_again(config, source.folder);
  add_record_fields(source.folder, out.files);
  if (models::traits_of(family_of(source).objective).predicts == models::Predicts::NextToken)
    say_padding(source, config, out.files, brought);
  out.files.emplace(out.files.begin(), "config.json", config.dump(2) + "\n");
  return out;
}

/// The elementwise states of a checkpoint and the parameters that have them: frozen parameters have
/// none, and rules keep different states for different parameters.
std::map<std::string, Parameters> states_of(const checkpoint::Checkpoint& opened,
                                            const Parameters& parameters) {
  constexpr std::string_view kPrefix = "optimizer.";
  std::map<std::string_view, std::shared_ptr<const ParamInfo>> by_name;
  for (const auto& info : parameters)
    by_name.emplace(info->name, info);
  std::map<std::string, Parameters> out;
  for (const auto& tensor : opened.tensors()) {
    if (!tensor.name.starts_with(kPrefix)) continue;
    const std::string_view name = std::string_view(tensor.name).substr(kPrefix.size());
    const std::size_t dot = std::min(name.find('.'), name.size() - 1);
    const auto found = by_name.find(name.substr(dot + 1));
    if (found != by_name.end() && found->second->shape == tensor.shape &&
        tensor.name != parallel::beginning_of(found->second->name))
      out[std::string(name.substr(0, dot))].push_back(found->second);
  }
  return out;
}

models::WeightSource state_source(const std::shared_ptr<const checkpoint::Checkpoint>& opened,
                                  const std::string& state) {
  return [opened, state](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    const checkpoint::PieceBytes piece{
        fmt::format("optimizer.{}.{}", state, info.name),
        DType::F32,
        info.shape,
        {mesh::whole(info.shape), begin, end},
        {reinterpret_cast<std::byte*>(out), static_cast<std::size_t>(end - begin) * sizeof(float)}};
    opened->load({&piece, 1});
  };
}

/// The learning rate of the next update, if it follows from the configuration alone.
std::optional<double> next_rate(const json::Value& config, std::int64_t updates) {
  const auto base = number_at(config, "optimizer.params.lr");
  if (!base) return std::nullopt;
  const json::Value* type = at_path(config, "scheduler.type");
  const json::Value* params = at_path(config, "scheduler.params");
  try {
    config::Problems problems;
    config::Origins origins;
    const auto schedule =
        optim::schedule_factory(type != nullptr && type->is_string() ? type->as_string() : "")(
            params != nullptr && params->is_object() ? *params : json::Value::object(),
            {.base_lr = *base, .max_steps = integer_at(config, "trainer.max_steps", 0)},
            problems,
            origins);
    if (schedule == nullptr || !problems.empty()) return std::nullopt;
    return schedule->lr(updates + 1);
  } catch (const Error&) {
    return std::nullopt;  // a schedule that needs more information about the run
  }
}

interop::Foreign training_of_checkpoint(const models::ModelSource& source) {
  const auto opened = std::make_shared<const checkpoint::Checkpoint>(source.folder);
  const models::Resolved resolved = resolve(source, tokenizer_size(source));
  Foreign out;
  out.what = "a checkpoint of tessera";
  out.path = source.folder;
  const Parameters parameters = nn::parameters_of(resolved.model);
  out.weights = renamed(models::source_weights(source, resolved), source, parameters, DType::F32);
  for (const auto& [state, kept] : states_of(*opened, parameters)) {
    auto tensors = renamed(state_source(opened, state), source, kept, DType::F32);
    for (checkpoint::StreamedTensor& tensor : tensors)
      tensor.aliases.clear();
    out.state.emplace(state, std::move(tensors));
  }
  for (const models::TheirTensor& theirs :
       models::their_tensors(family_of(source).weight_map, parameters)) {
    for (const models::TheirTensor::Part& part : theirs.parts) {
      if (const std::int64_t began = parallel::updates_before(*opened, part.info->name); began > 0)
        out.began.emplace(theirs.name, began);
    }
  }
  const checkpoint::Meta& meta = opened->meta();
  out.step = meta.step;
  out.samples = meta.samples;
  if (const json::Value* skipped = meta.extra.find("skipped"))
    out.skipped = skipped->as_integer().value_or(0);
  out.config = json::Value::object();
  for (const char* key : {"optimizer", "scheduler", "gradient_clipping", "train_batch_size"}) {
    if (const json::Value* found = meta.config.find(key)) out.config[key] = *found;
  }
  out.lr = next_rate(meta.config, out.step - out.skipped);
  return out;
}

/// Converts a float tensor to `wanted`.
checkpoint::StreamedTensor as_dtype(const checkpoint::StreamedTensor& tensor,
                                    std::optional<DType> wanted,
                                    const SharedOverflows& overflows) {
  if (!wanted || *wanted == tensor.dtype || !is_float(tensor.dtype)) return tensor;
  const auto read = [tensor, overflows, dtype = *wanted](
                        std::int64_t begin, std::int64_t end, std::byte* out) {
    std::vector<std::byte> piece(static_cast<std::size_t>(end - begin) * size_of(tensor.dtype));
    tensor.read(begin, end, piece.data());
    narrow(tensor.name, tensor.dtype, piece.data(), dtype, out, end - begin, overflows.get());
  };
  return {tensor.name, *wanted, tensor.shape, read, tensor.aliases, tensor.release};
}

/// Finds tied tensors: those that share a storage, and those listed in a safetensors file.
std::vector<checkpoint::StreamedTensor> of_weights(const std::vector<fs::path>& paths,
                                                   const std::vector<Weight>& weights,
                                                   std::optional<DType> wanted,
                                                   const SharedOverflows& overflows) {
  std::vector<checkpoint::StreamedTensor> out;
  std::map<std::string, StreamedTensor> streams;
  for (StreamedTensor& tensor : plain_weights(weights)) {
    std::string name = tensor.name;
    streams.emplace(std::move(name), std::move(tensor));
  }
  std::map<const std::byte*, std::vector<std::pair<const Weight*, std::size_t>>> at;
  const std::vector<std::string> plain = plain_names(weights);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const Weight& weight = weights[i];
    if (plain[i].empty()) continue;
    auto& neighbours = at[weight.data];
    bool tied = false;
    for (const auto& [other, index] : neighbours) {
      if (!weight.same_storage(*other)) continue;
      out[index].aliases.push_back(weight.name);
      tied = true;
      break;
    }
    if (tied) continue;
    neighbours.emplace_back(&weight, out.size());
    out.push_back(as_dtype(streams.at(plain[i]), wanted, overflows));
  }
  std::map<std::string, std::size_t> names;
  for (std::size_t i = 0; i < out.size(); ++i)
    names.emplace(out[i].name, i);
  for (const fs::path& path : paths) {
    if (path.extension() != ".safetensors") continue;
    const checkpoint::SafetensorsFile file(path);
    for (const auto& [alias, name] : file.metadata()) {
      const auto found = names.find(name);
      if (found != names.end() && names.count(alias) == 0)
        out[found->second].aliases.push_back(alias);
    }
  }
  return out;
}

/// Adds the files next to the weights in a folder: config.json first, if it exists.
void add_files(ModelExport& out, const fs::path& folder, std::optional<DType> dtype) {
  const fs::path path = folder / "config.json";
  if (!fs::is_regular_file(path)) return;
  std::string text = text::read_small_file(path);
  json::Value config = json::parse_strict(text, path.string());
  TESSERA_REQUIRE(
      config.is_object(), Format, path.string() + " is not a JSON object", "fetch it again");
  if (drop_quantization(config)) text = config.dump(2) + "\n";
  if (dtype) {
    const char* key = config.find("dtype") != nullptr ? "dtype" : "torch_dtype";
    config[key] = json::Value::string(torch_name(*dtype));
    text = config.dump(2) + "\n";
  }
  out.files.emplace_back("config.json", std::move(text));
  for (auto& file : files_beside(folder))
    out.files.push_back(std::move(file));
}

ModelExport of_foreign(const fs::path& path, std::optional<DType> dtype) {
  ModelExport out;
  const Foreign opened = *open_foreign(path);
  for (const checkpoint::StreamedTensor& tensor : opened.weights)
    out.tensors.push_back(as_dtype(tensor, dtype, out.overflows));
  if (opened.model_config.is_object()) {
    json::Value config = opened.model_config;
    if (dtype) config["torch_dtype"] = json::Value::string(torch_name(*dtype));
    out.files.emplace_back("config.json", config.dump(2) + "\n");
    out.files.insert(out.files.end(), opened.beside.begin(), opened.beside.end());
    return out;
  }
  const fs::path real = fs::absolute(path).lexically_normal();
  for (const fs::path& folder : {real, real.parent_path(), real.parent_path().parent_path()}) {
    if (out.files.empty()) add_files(out, folder, dtype.value_or(DType::F32));
  }
  return out;
}

ModelExport of_file(const fs::path& path, std::optional<DType> dtype) {
  ModelExport out;
  out.tensors = of_weights({path}, state_dict_of(open_weight_file(path)), dtype, out.overflows);
  add_files(out, fs::absolute(path).parent_path(), dtype);
  return out;
}

/// Throws Error{Format} if the weights are not those of the model that config.json describes. A
/// model that is not built is copied as it is.
void require_its_weights(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const json::Value config = json::parse_strict(text::read_small_file(path), path.string());
  if (!config.is_object() || !models::knows_head(config)) return;
  try {
    const models::ModelSource source = models::open_model_source(folder);
    const models::Resolved resolved = resolve(source, tokenizer_size(source));
    (void)weights_from_hf(folder, family_of(source), resolved);
  } catch (const Error& error) {
    if (error.kind() == Error::Kind::Format)
      throw Error(Error::Kind::Format,
                  fmt::format("{}\nthe model is that of {}", error.what(), path.string()),
                  error.fix());
    log::warn(fmt::format("{} is copied without a comparison of its weights with config.json: {}",
                          folder.string(),
                          error.what()));
  }
}

ModelExport of_hugging_face(const fs::path& folder, std::optional<DType> dtype) {
  ModelExport out;
  const fs::path path = folder / "config.json";
  TESSERA_REQUIRE(
      fs::exists(path),
      Format,
      fmt::format("{} has no config.json, manifest.json or checkpoints", folder.string()),
      "name a run or checkpoint of tessera, or a Hugging Face folder");
  require_its_weights(folder);
  add_files(out, folder, dtype);
  out.tensors =
      of_weights(weight_files(folder), state_dict_of(open_weights(folder)), dtype, out.overflows);
  return out;
}

/// A base with a PEFT adapter merged into it.
ModelExport of_adapted(const models::ModelSource& source, std::optional<DType> wanted) {
  if (!source.hugging_face) return of_checkpoint(source, wanted, /*averaged=*/false);
  const DType dtype = wanted.value_or(source.bf16 ? DType::BF16 : DType::F32);
  const models::Resolved resolved = resolve(source, tokenizer_size(source));
  ModelExport out;
  add_files(out, source.base != nullptr ? source.base->folder : source.folder, dtype);
  fit_files(source, out.files);
  out.tensors = renamed(models::source_weights(source, resolved),
                        source,
                        nn::parameters_of(resolved.model),
                        dtype,
                        out.overflows);
  return out;
}

/// Nothing if there is no tokenizer, or if tessera cannot read it; its files are copied in any
/// case.
std::optional<text::TokenizerOptions> tokenizer_of(const fs::path& folder) {
  try {
    const text::TokenizerOptions options = text::tokenizer_options_of(fs::absolute(folder));
    (void)text::make_tokenizer(options);
    return options;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> files_beside(const fs::path& folder) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const char* name : kBesideWeights) {
    std::error_code failed;  // a symbolic link to itself is not a file
    if (fs::is_regular_file(folder / name, failed))
      out.emplace_back(name, text::read_small_file(folder / name));
  }
  return out;
}

ModelExport open_model_export(const fs::path& source, std::optional<DType> dtype, bool averaged) {
  TESSERA_REQUIRE(!averaged || checkpoint::is_ours(source),
                  Config,
                  fmt::format("{} has no average of the weights", source.string()),
                  "only runs and checkpoints of tessera have one");
  if (is_foreign_source(source)) return of_foreign(source, dtype);
  if (fs::is_regular_file(source)) return of_file(source, dtype);
  TESSERA_REQUIRE(fs::is_directory(source),
                  Config,
                  fmt::format("there is no folder {}", source.string()),
                  "name a run or checkpoint of tessera, or a Hugging Face folder");
  if (checkpoint::is_ours(source))
    return of_checkpoint(models::open_model_source(source), dtype, averaged);
  if (is_peft(source)) return of_adapted(models::open_model_source(source), dtype);
  return of_hugging_face(source, dtype);
}

interop::Foreign open_training_export(const fs::path& source) {
  if (is_foreign_source(source)) return *open_foreign(source);
  TESSERA_REQUIRE(
      checkpoint::is_ours(source),
      Config,
      fmt::format("{} holds no training: optimizer state is asked for", source.string()),
      "name a run or checkpoint of tessera, or another program's checkpoint");
  const models::ModelSource opened = models::open_model_source(source);
  TESSERA_REQUIRE(opened.adapter.empty(),
                  Unsupported,
                  fmt::format("{} trained an adapter, whose optimizer state no other program's "
                              "checkpoint has a place for",
                              source.string()),
                  "write the merged model (tessera adapter merge) or the adapter (tessera adapter "
                  "extract)");
  return training_of_checkpoint(opened);
}

NativeExport open_native_export(const fs::path& path, bool weights_of_ours) {
  TESSERA_REQUIRE(weights_of_ours || !checkpoint::is_ours(path),
                  Config,
                  fmt::format("{} is tessera's already", path.string()),
                  "copy it, or merge its files: tessera checkpoint merge");
  const models::ModelSource source = models::open_model_source(path);
  const models::Resolved resolved = resolve(source, tokenizer_size(source));
  NativeExport out;
  if (source.foreign) {
    const auto opened = std::make_shared<const checkpoint::Checkpoint>(
        as_checkpoint(*open_foreign(path), family_of(source), resolved, resolved.max_positions, 1));
    out.meta = opened->meta();
    out.tensors = checkpoint::tensors_of(opened);
  } else {
    const models::WeightSource weights = models::source_weights(source, resolved);
    for (const auto& info : nn::parameters_of(resolved.model)) {
      const auto read = [weights, info](std::int64_t begin, std::int64_t end, std::byte* bytes) {
        weights(*info, begin, end, reinterpret_cast<float*>(bytes));
      };
      out.tensors.push_back({info->name, DType::F32, info->shape, read, {}});
    }
    out.meta.config = json::Value::object();
    out.meta.extra["imported"] = json::Value::string("a Hugging Face folder");
  }
  out.meta.config["model"] = resolved.description;
  checkpoint_objective(out.meta, resolved);
  // Without one the checkpoint does not describe a tokenizer, and a reader of text must specify it.
  auto tokenizer = tokenizer_of(source.folder);
  if (!tokenizer && checkpoint::is_ours(path)) tokenizer = source.tokenizer;
  if (tokenizer) out.meta.config["tokenizer"] = config::write(*tokenizer);
  out.files = files_beside(source.folder);
  if (json::Value ids = token_ids_in(source.folder); !ids.members().empty())
    out.meta.extra["hugging_face"] = json::Value::object({{"token_ids", std::move(ids)}});
  return out;
}

}  // namespace tessera::interop
