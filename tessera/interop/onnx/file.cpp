// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/onnx/file.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/protobuf.h"

namespace tessera::interop {
namespace {

constexpr std::size_t kMostDims = 64;

constexpr std::array<std::string_view, 17> kTypes = {"UNDEFINED",
                                                     "FLOAT",
                                                     "UINT8",
                                                     "INT8",
                                                     "UINT16",
                                                     "INT16",
                                                     "INT32",
                                                     "INT64",
                                                     "STRING",
                                                     "BOOL",
                                                     "FLOAT16",
                                                     "DOUBLE",
                                                     "UINT32",
                                                     "UINT64",
                                                     "COMPLEX64",
                                                     "COMPLEX128",
                                                     "BFLOAT16"};

void refuse_onnx(const std::string& file) {
  throw Error(Error::Kind::Format, file + ": is not an ONNX file, or is damaged", "fetch it again");
}

WireReader onnx_fields(std::string_view message, const std::string& file) {
  return {message, file, refuse_onnx};
}

void read_dims(const WireField& field, const std::string& file, OnnxTensor& out) {
  const auto add = [&](std::uint64_t dim) {
    if (out.shape.size() >= kMostDims) refuse_onnx(file);
    out.shape.push_back(static_cast<std::int64_t>(dim));
  };
  if (!field.has_bytes) return add(field.value);
  WireReader packed = onnx_fields(field.bytes, file);
  while (!packed.empty())
    add(packed.varint());
}

OnnxTensor tensor_of(std::string_view bytes, const std::string& file) {
  // float_data, int32_data, string_data, int64_data, raw_data, double_data, uint64_data
  constexpr std::array<std::uint64_t, 7> kData = {4, 5, 6, 7, 9, 10, 11};
  OnnxTensor out;
  WireReader message = onnx_fields(bytes, file);
  while (const auto field = message.next()) {
    if (field->number == 1) read_dims(*field, file, out);
    if (field->number == 2) {
      out.type = field->value < kTypes.size() ? std::string(kTypes[field->value])
                                              : fmt::format("type {}", field->value);
    }
    if (field->number == 8) out.name = std::string(field->bytes);
    if (std::ranges::find(kData, field->number) != kData.end()) out.bytes += field->bytes.size();
  }
  return out;
}

/// The text of field `number`, the name of most messages.
std::string text_of(std::string_view bytes, std::uint64_t number, const std::string& file) {
  std::string out;
  WireReader message = onnx_fields(bytes, file);
  while (const auto field = message.next()) {
    if (field->number == number) out = std::string(field->bytes);
  }
  return out;
}

void read_graph(std::string_view bytes, const std::string& file, OnnxFile& out) {
  WireReader message = onnx_fields(bytes, file);
  while (const auto field = message.next()) {
    if (field->number == 1) ++out.nodes;
    if (field->number == 2) out.graph = std::string(field->bytes);
    if (field->number == 5) out.tensors.push_back(tensor_of(field->bytes, file));
    if (field->number == 11) out.inputs.push_back(text_of(field->bytes, 1, file));
    if (field->number == 12) out.outputs.push_back(text_of(field->bytes, 1, file));
  }
  std::set<std::string_view> stored;
  for (const OnnxTensor& tensor : out.tensors)
    stored.insert(tensor.name);
  std::erase_if(out.inputs, [&](const std::string& name) { return stored.contains(name); });
}

/// The version of the operators; nothing for those of another domain than ONNX's own.
std::optional<std::int64_t> opset_of(std::string_view bytes, const std::string& file) {
  std::string domain;
  std::int64_t version = 0;
  WireReader message = onnx_fields(bytes, file);
  while (const auto field = message.next()) {
    if (field->number == 1) domain = std::string(field->bytes);
    if (field->number == 2) version = static_cast<std::int64_t>(field->value);
  }
  return domain.empty() || domain == "ai.onnx" ? std::optional(version) : std::nullopt;
}

}  // namespace

OnnxFile read_onnx(const std::filesystem::path& path) {
  const files::Mapped mapped(path);
  const std::string file = path.string();
  OnnxFile out;
  bool has_graph = false;
  WireReader message = onnx_fields(mapped.text(), file);
  while (const auto field = message.next()) {
    if (field->number == 1) out.ir_version = static_cast<std::int64_t>(field->value);
    if (field->number == 2) out.producer = std::string(field->bytes);
    if (field->number == 8) out.opset = opset_of(field->bytes, file).value_or(out.opset);
    if (field->number != 7) continue;
    has_graph = true;
    read_graph(field->bytes, file, out);
  }
  if (!has_graph) message.damaged();
  return out;
}

}  // namespace tessera::interop
