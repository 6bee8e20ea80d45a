// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/inspect_described.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/text/small_file.h"

namespace tessera::cli {
namespace {

json::Value word(std::string text) {
  // Escapes characters that could move a terminal's cursor.
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, '?');
  return json::Value::string(std::move(text));
}

/// The type of a part, with those of the steps of a sequence: "Sequence (NFC, Lowercase)".
std::string type_of(const json::Value* part) {
  if (part == nullptr || !part->is_object()) return "none";
  const json::Value* const type = part->find("type");
  std::string out = type != nullptr && type->is_string() ? type->as_string() : "unnamed";
  for (const char* list : {"normalizers", "pretokenizers", "processors", "decoders"}) {
    const json::Value* const steps = part->find(list);
    if (steps == nullptr || !steps->is_array()) continue;
    std::vector<std::string> types;
    for (const json::Value& step : steps->items())
      types.push_back(type_of(&step));
    out += fmt::format(" ({})", text::join(types, ", "));
  }
  return out;
}

std::int64_t count_of(const json::Value* list) {
  if (list == nullptr) return 0;
  if (list->is_array()) return std::ssize(list->items());
  return list->is_object() ? std::ssize(list->members()) : 0;
}

}  // namespace

DescribedFacts facts_of(const interop::OnnxFile& onnx) {
  const auto number = [](std::int64_t value) { return json::Value::integer(value); };
  return {{"format", word(fmt::format("ONNX, version {}", onnx.ir_version))},
          {"producer", word(onnx.producer)},
          {"graph", word(onnx.graph)},
          {"operators", word(fmt::format("set {} of ONNX", onnx.opset))},
          {"nodes", number(onnx.nodes)},
          {"inputs", word(text::join(onnx.inputs, ", "))},
          {"outputs", word(text::join(onnx.outputs, ", "))}};
}

std::optional<DescribedFacts> facts_of_tokenizer(const std::filesystem::path& path) {
  std::error_code failed;
  if (path.extension() != ".json" || !std::filesystem::is_regular_file(path, failed))
    return std::nullopt;
  const json::Value file = json::parse_strict(text::read_small_file(path), path.string());
  const json::Value* const model = file.is_object() ? file.find("model") : nullptr;
  if (model == nullptr || !model->is_object() || model->find("vocab") == nullptr)
    return std::nullopt;
  const auto number = [](std::int64_t value) { return json::Value::integer(value); };
  return DescribedFacts{{"tokenizer", word(path.string())},
                        {"format", word("a tokenizer.json of the tokenizers library")},
                        {"model", word(type_of(model))},
                        {"tokens", number(count_of(model->find("vocab")))},
                        {"merges", number(count_of(model->find("merges")))},
                        {"added tokens", number(count_of(file.find("added_tokens")))},
                        {"normalizer", word(type_of(file.find("normalizer")))},
                        {"pre-tokenizer", word(type_of(file.find("pre_tokenizer")))},
                        {"post-processor", word(type_of(file.find("post_processor")))},
                        {"decoder", word(type_of(file.find("decoder")))}};
}

}  // namespace tessera::cli
