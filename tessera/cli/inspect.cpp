// SPDX-License-Identifier: Apache-2.0
// tessera inspect: shows the contents of a run, a checkpoint, or a file of tensors or tokens.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/hub.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/checkpoint_path.h"
#include "tessera/cli/command.h"
#include "tessera/cli/inspect_described.h"
#include "tessera/config/json.h"
#include "tessera/data/llmc_tokens.h"
#include "tessera/data/token_file.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/gguf/reader.h"
#include "tessera/interop/onnx/file.h"
#include "tessera/interop/torch/file.h"
#include "tessera/interop/weights.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct Row {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::string digest;              ///< a line of checkpoint::digest_line; empty if not requested
  std::string stored = {};         ///< the file's own name of the type; empty: the name of `dtype`
  std::uint64_t stored_bytes = 0;  ///< with `stored`
};

/// The findings about a path: facts in order, then tensors.
struct Findings {
  std::vector<std::pair<std::string, json::Value>> facts;
  std::vector<Row> rows;
};

std::uint64_t numel(const Row& row) {
  std::uint64_t count = 1;
  for (const std::int64_t size : row.shape)
    count *= static_cast<std::uint64_t>(size);
  return count;
}
std::uint64_t bytes(const Row& row) {
  return row.stored.empty() ? numel(row) * size_of(row.dtype) : row.stored_bytes;
}
std::string_view type_of(const Row& row) {
  return row.stored.empty() ? name(row.dtype) : std::string_view(row.stored);
}
bool is_state(const Row& row) {
  return row.name.starts_with("optimizer.");
}

json::Value integer(std::uint64_t value) {
  return json::Value::integer(static_cast<std::int64_t>(value));
}

void count_tensors(Findings& found) {
  std::uint64_t parameters = 0, size = 0;
  std::set<std::string_view> types;
  for (const Row& row : found.rows) {
    size += bytes(row);
    types.insert(type_of(row));
    if (!is_state(row)) parameters += numel(row);
  }
  found.facts.emplace_back("tensors", integer(found.rows.size()));
  found.facts.emplace_back("parameters", integer(parameters));
  found.facts.emplace_back("bytes", integer(size));
  found.facts.emplace_back("types", json::Value::string(fmt::format("{}", fmt::join(types, ", "))));
}

Findings of_checkpoint(const fs::path& folder, bool digest) {
  const checkpoint::Checkpoint opened(folder);
  Findings found;
  found.facts = {{"checkpoint", json::Value::string(folder.string())},
                 {"format", json::Value::string("a checkpoint of tessera")},
                 {"step", json::Value::integer(opened.meta().step)},
                 {"samples", json::Value::integer(opened.meta().samples)},
                 {"tokens", json::Value::integer(opened.meta().tokens)}};
  const auto lines = digest ? opened.digest() : std::vector<std::string>(opened.tensors().size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto& tensor = opened.tensors()[i];
    found.rows.push_back({tensor.name, tensor.dtype, tensor.shape, lines[i]});
  }
  count_tensors(found);
  return found;
}

/// The digest of a tensor's elements in row-major order, whatever their layout.
std::string digest_of(const checkpoint::StreamedTensor& tensor, const std::string& name) {
  constexpr std::int64_t kElements = 1 << 20;
  std::vector<std::byte> buffer;
  files::Hasher hasher;
  const auto numel = static_cast<std::int64_t>(tensor.bytes() / size_of(tensor.dtype));
  for (std::int64_t at = 0; at < numel; at += kElements) {
    const std::int64_t end = std::min(at + kElements, numel);
    buffer.resize(static_cast<std::size_t>(end - at) * size_of(tensor.dtype));
    tensor.read(at, end, buffer.data());
    hasher.update(buffer);
  }
  return checkpoint::digest_line(name, tensor.dtype, tensor.shape, hasher.digest());
}

void add_row(Findings& found,
             const checkpoint::StreamedTensor& tensor,
             const std::string& name,
             bool digest) {
  found.rows.push_back({name, tensor.dtype, tensor.shape, digest ? digest_of(tensor, name) : ""});
}

void sort_rows(Findings& found) {
  std::sort(found.rows.begin(), found.rows.end(), [](const Row& a, const Row& b) {
    return std::pair(is_state(a), std::string_view(a.name)) <
           std::pair(is_state(b), std::string_view(b.name));
  });
}

/// Names are the other program's; its optimizer state is listed like tessera's.
Findings of_foreign(const fs::path& path, bool digest) {
  const interop::Foreign opened = *interop::open_foreign(path);
  Findings found;
  found.facts = {{"checkpoint", json::Value::string(path.string())},
                 {"format", json::Value::string(opened.what)},
                 {"files", integer(opened.files)},
                 {"step", json::Value::integer(opened.step)}};
  if (opened.samples) found.facts.emplace_back("samples", json::Value::integer(*opened.samples));
  for (const auto& tensor : opened.weights)
    add_row(found, tensor, tensor.name, digest);
  for (const auto& [state, tensors] : opened.state) {
    for (const auto& tensor : tensors)
      add_row(found, tensor, fmt::format("optimizer.{}.{}", state, tensor.name), digest);
  }
  sort_rows(found);
  count_tensors(found);
  return found;
}

/// The format of a tensor file, by its first bytes if the name does not say it.
std::string format_of(const fs::path& file) {
  if (file.extension() == ".safetensors") return "safetensors";
  std::array<char, 2> begin{};
  std::ifstream(file, std::ios::binary).read(begin.data(), begin.size());
  return begin == std::array{'P', 'K'} ? "torch.save (zip)" : "torch.save (before torch 1.6)";
}

Findings of_files(const std::string& what,
                  const fs::path& path,
                  const std::string& format,
                  std::size_t files,
                  const std::vector<interop::Weight>& weights,
                  bool digest) {
  Findings found;
  found.facts.emplace_back(what, json::Value::string(path.string()));
  found.facts.emplace_back("format", json::Value::string(format));
  found.facts.emplace_back("files", integer(files));
  for (const interop::Weight& weight : weights)
    add_row(found, interop::stream(weight, weight.name), weight.name, digest);
  sort_rows(found);
  count_tensors(found);
  return found;
}

fs::path with_extension(fs::path path, const char* extension) {
  if (path.extension() == ".bin" || path.extension() == ".idx")
    return path.replace_extension(extension);
  return path += extension;
}

Findings of_tokens(const fs::path& path) {
  const auto tokens = data::TokenFile::open(path);
  const fs::path bin = with_extension(path, ".bin"), idx = with_extension(path, ".idx");
  Findings found;
  found.facts = {{"tokens of", json::Value::string(bin.string())},
                 {"format", json::Value::string("Megatron's .bin/.idx")},
                 {"tokens", json::Value::integer(tokens->tokens())},
                 {"sequences", json::Value::integer(tokens->sequences())},
                 {"bytes", integer(fs::file_size(bin) + fs::file_size(idx))}};
  return found;
}

Findings of_llmc_tokens(const fs::path& path) {
  Findings found;
  found.facts = {{"tokens of", json::Value::string(path.string())},
                 {"format", json::Value::string("llm.c's tokens")},
                 {"tokens", json::Value::integer(data::open_llmc_tokens(path)->tokens())},
                 {"bytes", integer(fs::file_size(path))}};
  return found;
}

bool is_weight_file(const fs::path& path) {
  const std::string kind = path.extension().string();
  return !fs::is_directory(path) &&
         (kind == ".safetensors" || kind == ".bin" || kind == ".pt" || kind == ".pth");
}

/// Lists the tensors of a GGUF file under its own names and types, for any architecture. The
/// digests are of the elements decoded to fp32.
Findings of_gguf(const fs::path& path, bool digest) {
  const interop::GgufFile file(path);
  Findings found;
  found.facts = {{"file", json::Value::string(path.string())},
                 {"format", json::Value::string(fmt::format("GGUF, version {}", file.version()))}};
  for (const char* key : {"general.architecture", "general.name", "tokenizer.ggml.model"}) {
    if (const auto text = file.text(key))
      found.facts.emplace_back(key, json::Value::string(text::printable(*text)));
  }
  for (const interop::GgufTensor& tensor : file.tensors()) {
    add_row(found, interop::stream_gguf(file, tensor), tensor.name, digest);
    found.rows.back().stored = interop::ggml_block(tensor.type).name;
    found.rows.back().stored_bytes = tensor.data.size();
  }
  sort_rows(found);
  count_tensors(found);
  return found;
}

/// Lists the initializers of an ONNX file under its own names and types, without digests.
Findings of_onnx(const fs::path& path) {
  const interop::OnnxFile onnx = interop::read_onnx(path);
  Findings found;
  found.facts = {{"file", json::Value::string(path.string())}};
  for (auto& fact : facts_of(onnx))
    found.facts.push_back(std::move(fact));
  for (const interop::OnnxTensor& tensor : onnx.tensors) {
    found.rows.push_back({.name = tensor.name, .shape = tensor.shape, .digest = {}});
    found.rows.back().stored = tensor.type;
    found.rows.back().stored_bytes = tensor.bytes;
  }
  sort_rows(found);
  count_tensors(found);
  return found;
}

Findings findings(const fs::path& named, bool digest) {
  const fs::path path = hub::model_path(named.string());
  const bool pair =
      fs::exists(with_extension(path, ".idx")) && fs::exists(with_extension(path, ".bin"));
  if (pair && !fs::is_directory(path)) return of_tokens(path);
  if (data::is_llmc_tokens(path)) return of_llmc_tokens(path);
  const auto checkpoints = checkpoints_at(path);
  if (!checkpoints.empty()) return of_checkpoint(checkpoints.back(), digest);
  if (fs::is_directory(path)) {
    const auto files = interop::weight_files(path);
    if (!files.empty()) {
      return of_files("folder",
                      path,
                      "a Hugging Face folder of " + format_of(files.front()),
                      files.size(),
                      interop::open_weights(path),
                      digest);
    }
  }
  if (interop::is_gguf(path) && fs::is_regular_file(path)) return of_gguf(path, digest);
  if (path.extension() == ".onnx" && fs::is_regular_file(path)) return of_onnx(path);
  if (auto facts = facts_of_tokenizer(path)) return {.facts = std::move(*facts), .rows = {}};
  if (interop::is_foreign(path)) return of_foreign(path, digest);
  if (is_weight_file(path)) {
    // Any torch.save file: values other than tensors are ignored.
    const bool torch = path.extension() != ".safetensors";
    return of_files(
        "file",
        path,
        format_of(path),
        1,
        torch ? interop::read_torch_file(path).tensors : interop::open_weight_file(path),
        digest);
  }
  throw Error(
      Error::Kind::Format,
      fmt::format(
          "{} is not a run with a complete checkpoint, a checkpoint of tessera's or another "
          "program's, "
          ".safetensors, .bin, .pt, .pth, .gguf or .onnx file, tokenizer.json, Hugging Face folder "
          "or .bin/.idx pair",
          path.string()),
      "name one of these");
}

void print_json(const Findings& found) {
  json::Value out = json::Value::object();
  for (const auto& [key, value] : found.facts)
    out[key] = value;
  std::vector<json::Value> rows;
  for (const Row& row : found.rows) {
    std::vector<json::Value> shape;
    for (const std::int64_t size : row.shape)
      shape.push_back(json::Value::integer(size));
    json::Value one =
        json::Value::object({{"name", json::Value::string(row.name)},
                             {"dtype", json::Value::string(std::string(type_of(row)))},
                             {"shape", json::Value::array(shape)},
                             {"bytes", integer(bytes(row))}});
    if (!row.digest.empty())
      one["digest"] = json::Value::string(row.digest.substr(row.digest.rfind(' ') + 1));
    rows.push_back(one);
  }
  if (!rows.empty()) out["tensor_list"] = json::Value::array(rows);
  std::printf("%s\n", out.dump(2).c_str());
}

std::string shown(const std::string& key, const json::Value& value) {
  if (value.is_string()) return value.as_string();
  const std::int64_t number = value.as_integer().value_or(0);
  const std::string plain = text::with_commas(number);
  return key == "bytes"
             ? fmt::format("{} ({})", plain, text::bytes(static_cast<std::uint64_t>(number)))
             : plain;
}

void print_table(const Findings& found, bool quiet) {
  for (const auto& [key, value] : found.facts)
    std::printf("%-12s %s\n", key.c_str(), shown(key, value).c_str());
  if (quiet || found.rows.empty()) return;
  std::size_t width = 0;
  for (const Row& row : found.rows)
    width = std::max(width, std::min<std::size_t>(row.name.size(), 60));
  std::printf("\n");
  for (const Row& row : found.rows) {
    std::printf("%s\n",
                fmt::format("{:<{}}  {:<4}  {:>10}  [{}]",
                            text::printable(row.name),
                            width,
                            type_of(row),
                            text::bytes(bytes(row)),
                            fmt::join(row.shape, ", "))
                    .c_str());
  }
}

int inspect(const std::vector<std::string>& line) {
  std::string path;
  bool digest = false;
  Common common;
  Arguments arguments(
      "inspect",
      "Shows the contents of a run (its newest complete checkpoint), a checkpoint (also of "
      "DeepSpeed, Megatron-LM, BMTrain, llm.c, nanoGPT or a torch loop), a .safetensors, .gguf or "
      ".onnx file, a torch.save file, a tokenizer.json, a Hugging Face folder or a .bin/.idx pair.",
      {"tessera inspect runs/my",
       "tessera inspect runs/my --digest > before.txt",
       "tessera inspect model.safetensors --json"});
  arguments.positional("PATH", &path, "Run, checkpoint, file or folder");
  arguments.flag("--digest",
                 digest,
                 "Print one line per tensor with the xxh3 hash of its bytes, which does not depend "
                 "on the layout");
  arguments.common(common, /*has_json=*/true);
  if (!arguments.parse(line)) return kExitOk;
  const Findings found = findings(path, digest);
  if (common.json) {
    print_json(found);
  } else if (digest) {
    for (const Row& row : found.rows)
      std::printf("%s\n", text::printable(row.digest).c_str());
  } else {
    print_table(found, common.quiet);
  }
  return kExitOk;
}

TESSERA_COMMAND("inspect", "show the contents of a run, checkpoint or file", inspect);

}  // namespace
}  // namespace tessera::cli
