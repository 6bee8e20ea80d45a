// SPDX-License-Identifier: Apache-2.0
// tessera convert SRC DST: converts a model to another format.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/draft.h"
#include "tessera/checkpoint/storage.h"
#include "tessera/checkpoint/streamed_save.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/checkpoint_path.h"
#include "tessera/cli/command.h"
#include "tessera/cli/convert_progress.h"
#include "tessera/cli/convert_target.h"
#include "tessera/cli/terminal.h"
#include "tessera/engine/onnx_of.h"
#include "tessera/engine/open_model.h"
#include "tessera/interop/export.h"
#include "tessera/interop/foreign_write.h"
#include "tessera/interop/gguf/reader.h"
#include "tessera/interop/gguf/writer.h"
#include "tessera/interop/huggingface/nf4_export.h"
#include "tessera/interop/model_export.h"
#include "tessera/interop/onnx/graph.h"
#include "tessera/interop/upcycle.h"
#include "tessera/launch/launch.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

enum class To : std::uint8_t { HuggingFace, Torch, Universal, Tessera, Gguf, Onnx };

struct Wanted {
  fs::path source, target;
  std::optional<DType> dtype;
  std::optional<interop::GgmlType> gguf_type;
  To to = To::HuggingFace;
  std::uint64_t shard_bytes = 0;
  bool overwrite = false, averaged = false;
  bool nf4 = false;  ///< the matrices of linear layers in four bits
  std::optional<interop::Upcycling> upcycling;
};

std::uint64_t read_size(const std::string& text) {
  static const std::vector<std::pair<std::string, std::uint64_t>> units = {{"", 1},
                                                                           {"b", 1},
                                                                           {"kb", 1'000},
                                                                           {"mb", 1'000'000},
                                                                           {"gb", 1'000'000'000},
                                                                           {"kib", 1ULL << 10},
                                                                           {"mib", 1ULL << 20},
                                                                           {"gib", 1ULL << 30}};
  std::uint64_t count = 0, bytes = 0;
  const char* const last = text.data() + text.size();
  const auto [end, failed] = std::from_chars(text.data(), last, count);
  for (const auto& [unit, factor] : units) {
    if (failed == std::errc() && text::lower(std::string(end, last)) == unit &&
        !__builtin_mul_overflow(count, factor, &bytes) && bytes > 0) {
      return bytes;
    }
  }
  throw Error(Error::Kind::Config,
              fmt::format("--shard-size \"{}\" is not a size", text),
              "use a whole number and MB, GB, MiB or GiB: --shard-size 2GB");
}

DType read_dtype(const std::string& text) {
  if (text == "fp32") return DType::F32;
  if (text == "bf16") return DType::BF16;
  if (text == "fp16") return DType::F16;
  const std::vector<std::string> known = {"fp32", "bf16", "fp16", "nf4"};
  throw Error(Error::Kind::Config,
              fmt::format("unknown --dtype \"{}\"", text),
              text::suggestion(text, known));
}

/// The element types that --dtype accepts for a GGUF file: those of other files, and q8_0 blocks.
interop::GgmlType read_gguf_type(const std::string& text) {
  using enum interop::GgmlType;
  static const std::vector<std::pair<std::string, interop::GgmlType>> types = {
      {"fp32", F32}, {"f32", F32}, {"fp16", F16}, {"f16", F16}, {"bf16", BF16}, {"q8_0", Q8_0}};
  for (const auto& [name, type] : types) {
    if (name == text) return type;
  }
  const std::vector<std::string> known = {"fp32", "bf16", "fp16", "q8_0"};
  throw Error(Error::Kind::Config,
              fmt::format("unknown --dtype \"{}\"", text),
              text::suggestion(text, known));
}

To read_to(const std::string& text) {
  static const std::vector<std::string> known = {
      "hf", "torch", "deepspeed-universal", "tessera", "gguf", "onnx"};
  const auto found = std::find(known.begin(), known.end(), text);
  if (found != known.end()) return static_cast<To>(found - known.begin());
  throw Error(
      Error::Kind::Config, fmt::format("unknown --to \"{}\"", text), text::suggestion(text, known));
}

bool names_torch_file(const fs::path& path) {
  const std::string kind = path.extension().string();
  return kind == ".bin" || kind == ".pt" || kind == ".pth";
}

/// optimizer_000005.pth next to model_000005.pth: the files of one step of a torch training loop.
std::optional<fs::path> optimizer_beside(const fs::path& target) {
  static const std::regex model("model(_\\d{1,15}\\.(?:pth|pt))");
  std::smatch match;
  const std::string name = target.filename().string();
  if (!std::regex_match(name, match, model)) return std::nullopt;
  return target.parent_path() / ("optimizer" + match[1].str());
}

void check_target(const Wanted& wanted, const fs::path& target) {
  std::error_code ignored;
  TESSERA_REQUIRE(fs::is_directory(target.parent_path()),
                  Config,
                  fmt::format("the folder {} does not exist", target.parent_path().string()),
                  "create it first");
  if (fs::symlink_status(target, ignored).type() == fs::file_type::not_found) return;
  TESSERA_REQUIRE(wanted.overwrite,
                  Config,
                  fmt::format("{} already exists", target.string()),
                  "choose another path, or replace it with --overwrite");
  require_replaceable(target, wanted.source);
}

/// The messages during and after a conversion.
class ConversionLog {
 public:
  ConversionLog(std::uint64_t total, const Common& common)
      : common_(common), total_(total), progress_(total, terminal_) {}
  [[nodiscard]] checkpoint::Written written() {
    if (common_.quiet || common_.json) return [](std::uint64_t) {};
    return [this](std::uint64_t bytes) { progress_.add(bytes); };
  }
  /// Prints what was written: a line, or a JSON object.
  void end(const fs::path& target, std::size_t tensors) {
    if (common_.json) {
      terminal_.data(json::Value::object(
                         {{"path", json::Value::string(target.string())},
                          {"tensors", json::Value::integer(static_cast<std::int64_t>(tensors))},
                          {"bytes", json::Value::integer(static_cast<std::int64_t>(total_))}})
                         .dump());
    } else if (!common_.quiet) {
      terminal_.line(
          fmt::format("{}: {} tensors, {}", target.string(), tensors, text::bytes(total_)));
    }
  }

 private:
  Terminal terminal_;
  const Common& common_;
  std::uint64_t total_;
  ConvertProgress progress_;
};

std::uint64_t bytes_of(const std::vector<checkpoint::StreamedTensor>& tensors) {
  std::uint64_t total = 0;
  for (const auto& tensor : tensors)
    total += tensor.bytes();
  return total;
}

/// Warns of tensors with numbers that fp16 or bf16 cannot represent.
void warn_of(const interop::Overflows& overflows, DType dtype) {
  if (overflows.empty()) return;
  std::int64_t lost = 0;
  for (const auto& [name, count] : overflows)
    lost += count;
  const auto& [first, count] = *overflows.begin();
  log::warn(fmt::format(
      "{} {} too large for {} and became infinite, {} of them in {}{}{}",
      lost,
      lost == 1 ? "number was" : "numbers were",
      dtype == DType::F16 ? "fp16, whose largest is 65504," : name(dtype),
      count,
      first,
      overflows.size() > 1 ? fmt::format(", the others in {} more", overflows.size() - 1) : "",
      dtype == DType::F16 ? "; --dtype bf16 has the range of fp32" : ""));
}

/// Writes only weights: a Hugging Face folder, or a torch file.
void write_model(const Wanted& wanted, const Common& common) {
  interop::ModelExport model =
      interop::open_model_export(wanted.source, wanted.dtype, wanted.averaged);
  if (wanted.nf4) interop::store_in_nf4(model);
  const bool lone = names_torch_file(wanted.target);
  TESSERA_REQUIRE(
      lone || !model.files.empty(),
      Format,
      fmt::format("{} has no config.json next to its weights, which a Hugging Face folder needs",
                  wanted.source.string()),
      "put the model's config.json there, or write a single file: DST.bin");
  ConversionLog progress(bytes_of(model.tensors), common);
  const checkpoint::Written written = progress.written();
  checkpoint::Draft draft(wanted.target);
  if (lone) {
    interop::write_torch_weights(draft.path(), model.tensors, written);
  } else {
    checkpoint::real_storage().make_folder(draft.path());
    for (const auto& [name, content] : model.files)
      files::write_atomic(draft.path() / name, content);
    if (wanted.to == To::Torch) {
      interop::write_torch_weights(draft.path() / "pytorch_model.bin", model.tensors, written);
    } else {
      interop::write_hf_weights(draft.path(), model.tensors, wanted.shard_bytes, written);
    }
  }
  draft.publish();
  progress.end(wanted.target, model.tensors.size());
  if (wanted.dtype) warn_of(*model.overflows, *wanted.dtype);
}

void write_gguf_file(const Wanted& wanted, const Common& common) {
  const interop::ModelExport model =
      interop::open_model_export(wanted.source, std::nullopt, wanted.averaged);
  const interop::GgufPlan plan = interop::plan_gguf(model.tensors, model.files, wanted.gguf_type);
  ConversionLog progress(plan.bytes, common);
  checkpoint::Draft draft(wanted.target);
  interop::write_gguf(draft.path(), plan, progress.written());
  draft.publish();
  progress.end(wanted.target, plan.tensors.size());
}

void write_onnx_file(const Wanted& wanted, const Common& common) {
  const auto model = engine::find_model(wanted.source, /*needs_tokenizer=*/false);
  engine::check_memory(*model, 1, launch::available_memory());
  engine::load_model(*model);
  const interop::OnnxGraph graph = engine::onnx_of(model->shape, *model->executor);
  const fs::path data = onnx_data_of(wanted.target);
  if (graph.bytes() <= std::min(wanted.shard_bytes, interop::kOnnxMostBytes)) {
    ConversionLog progress(graph.bytes(), common);
    checkpoint::Draft draft(wanted.target);
    graph.write(draft.path(), progress.written());
    // The weights of the model that is replaced; the new one has its weights in itself.
    const bool stale = is_converted_onnx_data(data);
    draft.publish();
    if (stale) checkpoint::real_storage().remove(data);
    progress.end(wanted.target, graph.constants());
    return;
  }
  check_target(wanted, data);
  const std::string name = data.filename().string();
  const auto [model_bytes, data_bytes] = graph.bytes_beside(name);
  ConversionLog progress(model_bytes + data_bytes, common);
  checkpoint::Draft draft(wanted.target), data_draft(data);
  graph.write_beside(draft.path(), data_draft.path(), name, progress.written());
  // If the program is killed between the two, there is no model rather than one with the weights of
  // another.
  if (fs::exists(wanted.target)) checkpoint::real_storage().remove(wanted.target);
  data_draft.publish();
  draft.publish();
  progress.end(wanted.target, graph.constants());
}

/// The number of weights and states.
std::size_t tensors_of(const interop::Foreign& training) {
  std::size_t total = training.weights.size();
  for (const auto& [state, tensors] : training.state)
    total += tensors.size();
  return total;
}

/// Writes model_N.pth and optimizer_N.pth.
void write_pair(const Wanted& wanted, const fs::path& optimizer, const Common& common) {
  interop::Foreign training = interop::open_training_export(wanted.source);
  interop::order_by_module(training);
  ConversionLog progress(interop::torch_loop_bytes(training), common);
  checkpoint::Draft model_draft(wanted.target), optimizer_draft(optimizer);
  interop::write_torch_loop(
      model_draft.path(), optimizer_draft.path(), training, progress.written());
  optimizer_draft.publish();
  model_draft.publish();
  progress.end(wanted.target, tensors_of(training));
  if (const std::string lost = interop::lost_in_torch_loop(training); !lost.empty())
    log::warn(lost);
}

void write_universal(const Wanted& wanted, const Common& common) {
  const interop::Foreign training = interop::open_training_export(wanted.source);
  ConversionLog progress(interop::universal_bytes(training), common);
  checkpoint::Draft draft(wanted.target);
  checkpoint::real_storage().make_folder(draft.path());
  interop::write_universal(draft.path(), training, progress.written());
  draft.publish();
  progress.end(wanted.target, tensors_of(training));
}

void write_native(const Wanted& wanted, const Common& common) {
  interop::NativeExport native =
      interop::open_native_export(wanted.source, wanted.upcycling.has_value());
  if (wanted.upcycling) interop::make_experts(native, *wanted.upcycling);
  ConversionLog progress(bytes_of(native.tensors), common);
  checkpoint::Draft draft(wanted.target);
  checkpoint::real_storage().make_folder(draft.path());
  for (const auto& [name, content] : native.files)
    files::write_atomic(draft.path() / name, content);
  checkpoint::write_checkpoint(draft.path(), native.meta, native.tensors, progress.written());
  draft.publish();
  progress.end(wanted.target, native.tensors.size());
}

int run(const Wanted& named, bool last, const Common& common) {
  check_target(named, named.target);
  const auto optimizer = optimizer_beside(named.target);
  if (optimizer) check_target(named, *optimizer);
  Wanted wanted = named;
  wanted.source = model_at(named.source, last, common);
  if (wanted.to == To::Gguf) {
    write_gguf_file(wanted, common);
  } else if (wanted.to == To::Onnx) {
    write_onnx_file(wanted, common);
  } else if (wanted.to == To::Universal) {
    write_universal(wanted, common);
  } else if (wanted.to == To::Tessera) {
    write_native(wanted, common);
  } else if (optimizer) {
    write_pair(wanted, *optimizer, common);
  } else {
    write_model(wanted, common);
  }
  return kExitOk;
}

struct ConvertFlags {
  std::string source, target, shard_size = "5GB";
  std::optional<std::string> dtype, to;
  std::optional<std::int64_t> upcycle, top_k;
  bool overwrite = false, averaged = false, last = false;
  Common common;
};

bool parse(ConvertFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "convert",
      "Converts a model to or from the format of another program: a Hugging Face folder "
      "(safetensors or pytorch_model.bin), a single torch file, a GGUF file or an ONNX file; with "
      "optimizer state also model_N.pth and optimizer_N.pth, DeepSpeed's universal checkpoint, or "
      "a checkpoint of "
      "tessera.",
      {"tessera convert runs/my my-gpt2",
       "tessera convert runs/my my-gpt2 --dtype bf16 --shard-size 2GB",
       "tessera convert my-gpt2 model.pt",
       "tessera convert runs/my model_000500.pth               with optimizer_000500.pth",
       "tessera convert runs/my ds --to deepspeed-universal",
       "tessera convert runs/my my.gguf --dtype q8_0",
       "tessera convert llama-8b llama-8b-nf4 --dtype nf4      as load_in_4bit of transformers",
       "tessera convert runs/my my.onnx                        with any batch size and length",
       "tessera convert llama-8b sparse --upcycle 8            with 8 experts in every layer",
       "tessera convert ds-run/ start --to tessera  then: tessera train CONFIG --resume start"});
  arguments.positional("SRC",
                       &words.source,
                       "A run, a checkpoint (also of DeepSpeed, Megatron-LM, BMTrain, llm.c or a "
                       "torch loop), a Hugging Face folder, a GGUF file or a file of weights");
  arguments.positional(
      "DST", &words.target, "A folder, or a file that ends in .bin, .pt, .pth, .gguf or .onnx");
  arguments.option("--to",
                   &words.to,
                   "hf (safetensors), torch, deepspeed-universal, tessera, gguf or onnx [hf, or "
                   "torch, gguf or onnx if DST is such a file]");
  arguments.option(
      "--dtype",
      &words.dtype,
      "fp32, bf16 or fp16 for the float tensors; nf4 for the matrices of linear layers "
      "in a Hugging Face folder (4 bits, as bitsandbytes); q8_0 for the matrices of a "
      "GGUF file [unchanged]");
  arguments.option(
      "--shard-size", &words.shard_size, "Maximum size of a safetensors file: 500MB, 2GB");
  arguments.option("--upcycle",
                   &words.upcycle,
                   "Make this number of experts of every MLP, copies of it with a new router, and "
                   "write a checkpoint of tessera");
  arguments.option("--top-k", &words.top_k, "With --upcycle: experts that a token uses [2]");
  arguments.flag("--ema",
                 words.averaged,
                 "Write the moving average of the weights (trainer.ema) instead of the weights");
  add_last(arguments, &words.last);
  arguments.flag(
      "--overwrite", words.overwrite, "Replace the result of an earlier conversion at DST");
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

/// A name such as "model.tflite" suggests a file format that is not supported; creating a folder of
/// that name would be a surprise. "llama-3.2" and "run.v2" are folders.
void refuse_other_file_names(const fs::path& target) {
  static const std::set<std::string> formats = {".ggml",
                                                ".h5",
                                                ".hdf5",
                                                ".pb",
                                                ".tflite",
                                                ".npz",
                                                ".npy",
                                                ".ckpt",
                                                ".safetensor",
                                                ".pkl",
                                                ".pickle",
                                                ".msgpack",
                                                ".json",
                                                ".tar",
                                                ".zip",
                                                ".gz"};
  const std::string kind = text::lower(target.extension().string());
  std::error_code failed;
  TESSERA_REQUIRE(formats.count(kind) == 0 || fs::is_directory(target, failed),
                  Config,
                  fmt::format("{} has the name of a {} file, which is not written",
                              target.filename().string(),
                              kind.substr(1)),
                  "name a folder for safetensors, or a file that ends in .bin, .pt, .pth, .gguf or "
                  ".onnx");
}

Wanted wanted_of(const ConvertFlags& words) {
  Wanted wanted;
  wanted.source = words.source;
  wanted.overwrite = words.overwrite;
  wanted.averaged = words.averaged;
  wanted.target = fs::absolute(words.target).lexically_normal();
  if (!wanted.target.has_filename()) wanted.target = wanted.target.parent_path();
  wanted.shard_bytes = read_size(words.shard_size);
  const bool torch_file = names_torch_file(wanted.target);
  const bool gguf = interop::is_gguf(wanted.target), onnx = wanted.target.extension() == ".onnx";
  if (words.upcycle)
    wanted.upcycling = {.num_experts = *words.upcycle, .top_k = words.top_k.value_or(2)};
  TESSERA_REQUIRE(words.upcycle || !words.top_k,
                  Config,
                  "--top-k is for --upcycle, which is not given",
                  "add --upcycle 8, or remove it");
  TESSERA_REQUIRE(!words.upcycle || !words.to || *words.to == "tessera",
                  Config,
                  fmt::format("--upcycle writes a checkpoint of tessera, and --to is {}",
                              words.to.value_or("")),
                  "remove --to, and convert the checkpoint afterwards");
  wanted.to = wanted.upcycling ? To::Tessera
              : words.to       ? read_to(*words.to)
              : torch_file     ? To::Torch
              : gguf           ? To::Gguf
              : onnx           ? To::Onnx
                               : To::HuggingFace;
  TESSERA_REQUIRE((wanted.to == To::Gguf) == gguf,
                  Config,
                  fmt::format("a GGUF file has a name that ends in .gguf, and no other file has; "
                              "DST is {}",
                              words.target),
                  "name DST so, or change --to");
  TESSERA_REQUIRE((wanted.to == To::Onnx) == onnx,
                  Config,
                  fmt::format("an ONNX file has a name that ends in .onnx, and no other file has; "
                              "DST is {}",
                              words.target),
                  "name DST so, or change --to");
  TESSERA_REQUIRE(!onnx || !words.dtype || *words.dtype == "fp32",
                  Unsupported,
                  fmt::format("not built: an ONNX file with --dtype {}", *words.dtype),
                  "remove it: the numbers of an ONNX file are fp32");
  TESSERA_REQUIRE(!onnx || !words.averaged,
                  Unsupported,
                  "not built: an ONNX file of the moving average of the weights",
                  "convert to a folder with --ema first, and then the folder to ONNX");
  if (words.dtype && gguf) {
    wanted.gguf_type = read_gguf_type(*words.dtype);
  } else if (words.dtype == "nf4") {
    wanted.nf4 = true;
  } else if (words.dtype) {
    wanted.dtype = read_dtype(*words.dtype);
  }
  TESSERA_REQUIRE(!wanted.nf4 || wanted.to == To::HuggingFace,
                  Config,
                  "--dtype nf4 is only for a Hugging Face folder, the format that is read with it",
                  "name a folder as DST, or another --dtype");
  TESSERA_REQUIRE(
      wanted.to == To::Torch || !torch_file,
      Config,
      fmt::format(
          "--to {} writes a folder, but {} has the name of a file", *words.to, words.target),
      "name a folder, or remove --to");
  std::error_code failed;
  TESSERA_REQUIRE(
      wanted.target.extension() != ".safetensors" || fs::is_directory(wanted.target, failed),
      Config,
      fmt::format("safetensors are written as a folder, but {} has the name of a file",
                  words.target),
      "name a folder; it will contain model.safetensors");
  refuse_other_file_names(wanted.target);
  const bool training = wanted.to == To::Universal || wanted.to == To::Tessera ||
                        optimizer_beside(wanted.target).has_value();
  TESSERA_REQUIRE(
      !training || !wanted.dtype,
      Config,
      "--dtype only applies to weights without optimizer state, which has fp32 master weights",
      "remove it");
  TESSERA_REQUIRE(!training || !wanted.averaged,
                  Config,
                  "--ema only applies to weights without optimizer state, which belongs to the "
                  "weights themselves",
                  "remove it");
  return wanted;
}

int convert(const std::vector<std::string>& line) {
  ConvertFlags words;
  if (!parse(words, line)) return kExitOk;
  return run(wanted_of(words), words.last, words.common);
}

TESSERA_COMMAND("convert", "write a model or training in another program's format", convert);

}  // namespace
}  // namespace tessera::cli
