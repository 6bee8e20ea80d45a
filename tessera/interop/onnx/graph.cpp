// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/onnx/graph.h"

#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/storage.h"

namespace tessera::interop {
namespace {

// Field numbers of onnx.proto.
namespace field {
constexpr int kModelIr = 1, kModelProducer = 2, kModelGraph = 7, kModelOpset = 8;
constexpr int kOpsetVersion = 2;
constexpr int kGraphNode = 1, kGraphName = 2, kGraphConstant = 5, kGraphInput = 11,
              kGraphOutput = 12;
constexpr int kNodeInput = 1, kNodeOutput = 2, kNodeOp = 4, kNodeAttribute = 5;
constexpr int kAttributeName = 1, kAttributeReal = 2, kAttributeInteger = 3, kAttributeIntegers = 8,
              kAttributeType = 20;
constexpr int kTensorDim = 1, kTensorType = 2, kTensorName = 8, kTensorBytes = 9,
              kTensorExternal = 13, kTensorLocation = 14, kEntryKey = 1, kEntryValue = 2;
constexpr int kValueName = 1, kValueType = 2, kTypeTensor = 1, kTensorElement = 1, kTensorShape = 2,
              kShapeDim = 1, kDimValue = 1, kDimName = 2;
}  // namespace field
constexpr std::int64_t kReal = 1, kInteger = 2, kIntegers = 7;  // AttributeProto.AttributeType

constexpr std::int64_t kExternal = 1;  // TensorProto.DataLocation

/// Constants of fewer bytes stay in the graph, where programs that check it read them.
constexpr std::uint64_t kSmallestOutside = 1024;
/// Constants in a file of their own begin at multiples of a page, so that it can be mapped.
constexpr std::uint64_t kPage = 4096;

/// A TensorProto without values.
WireMessage description_of(const std::string& name, const at::Tensor& tensor) {
  WireMessage out;
  for (const std::int64_t size : tensor.sizes())
    out.integer(field::kTensorDim, size);
  return out.integer(field::kTensorType, onnx_type(tensor.scalar_type()))
      .bytes(field::kTensorName, name);
}

/// A TensorProto up to the values, whose bytes follow.
WireMessage beginning_of(const std::string& name, const at::Tensor& tensor) {
  return description_of(name, tensor).opening(field::kTensorBytes, tensor.nbytes());
}

/// A TensorProto whose values lie in the file `data`.
WireMessage outside(const std::string& name,
                    const at::Tensor& tensor,
                    const std::string& data,
                    std::uint64_t offset) {
  WireMessage out = description_of(name, tensor);
  for (const auto& [key, value] :
       {std::pair(std::string("location"), data),
        std::pair(std::string("offset"), std::to_string(offset)),
        std::pair(std::string("length"), std::to_string(tensor.nbytes()))}) {
    WireMessage entry;
    entry.bytes(field::kEntryKey, key).bytes(field::kEntryValue, value);
    out.message(field::kTensorExternal, entry);
  }
  return out.integer(field::kTensorLocation, kExternal);
}

/// Calls fn(name, tensor, offset) for each constant; the offset is that in a file of large
/// constants, and nothing for those that lie in the graph. Returns the bytes of that file.
template <class Fn>
std::uint64_t for_each_constant(const std::map<std::string, at::Tensor>& constants,
                                bool beside,
                                const Fn& fn) {
  std::uint64_t end = 0;
  for (const auto& [name, tensor] : constants) {
    if (!beside || tensor.nbytes() < kSmallestOutside) {
      fn(name, tensor, std::optional<std::uint64_t>());
      continue;
    }
    const std::uint64_t offset = (end + kPage - 1) / kPage * kPage;
    fn(name, tensor, std::optional(offset));
    end = offset + tensor.nbytes();
  }
  return end;
}

std::string_view bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const char*>(contiguous.const_data_ptr()), contiguous.nbytes()};
}

/// The fields of ModelProto before the graph, and after it.
WireMessage first_fields() {
  WireMessage out;
  return out.integer(field::kModelIr, kOnnxIrVersion).bytes(field::kModelProducer, kOnnxProducer);
}
WireMessage beginning_of_model(std::uint64_t graph_bytes) {
  return first_fields().opening(field::kModelGraph, graph_bytes);
}
WireMessage end_of_model() {
  WireMessage opset, out;
  opset.integer(field::kOpsetVersion, kOnnxOpset);
  return out.message(field::kModelOpset, opset);
}

}  // namespace

const std::string& onnx_mark() {
  static const std::string mark = first_fields().str();
  return mark;
}

OnnxSize OnnxSize::operator+(const OnnxSize& other) const {
  OnnxSize out = *this;
  for (std::size_t m = 0; m < terms.size(); ++m)
    out.terms[m] += other.terms[m];
  return out;
}

OnnxAttribute::OnnxAttribute(const char* name, std::int64_t value) {
  message_.bytes(field::kAttributeName, name)
      .integer(field::kAttributeInteger, value)
      .integer(field::kAttributeType, kInteger);
}

OnnxAttribute::OnnxAttribute(const char* name, float value) {
  message_.bytes(field::kAttributeName, name)
      .single(field::kAttributeReal, value)
      .integer(field::kAttributeType, kReal);
}

OnnxAttribute::OnnxAttribute(const char* name, const std::vector<std::int64_t>& values) {
  message_.bytes(field::kAttributeName, name);
  for (const std::int64_t value : values)
    message_.integer(field::kAttributeIntegers, value);
  message_.integer(field::kAttributeType, kIntegers);
}

std::int64_t onnx_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return 1;
    case at::kByte:
      return 2;
    case at::kInt:
      return 6;
    case at::kLong:
      return 7;
    case at::kBool:
      return 9;
    case at::kDouble:
      return 11;
    default:
      throw Error(
          Error::Kind::Unsupported,
          fmt::format("not built: values of the type {} in an ONNX file", c10::toString(type)),
          "convert to another format");
  }
}

WireMessage OnnxGraph::value_info(const std::string& name,
                                  at::ScalarType type,
                                  const std::vector<OnnxSize>& sizes) const {
  WireMessage shape;
  for (const OnnxSize& size : sizes) {
    WireMessage dim;  // empty: any size
    if (size.is_fixed()) dim.integer(field::kDimValue, size.value());
    for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
      if (size == OnnxSize::axis(axis)) dim.bytes(field::kDimName, axes_[axis]);
    }
    shape.message(field::kShapeDim, dim);
  }
  WireMessage tensor, wrapped, out;
  tensor.integer(field::kTensorElement, onnx_type(type)).message(field::kTensorShape, shape);
  wrapped.message(field::kTypeTensor, tensor);
  return out.bytes(field::kValueName, name).message(field::kValueType, wrapped);
}

void OnnxGraph::input(const std::string& name,
                      at::ScalarType type,
                      const std::vector<OnnxSize>& sizes) {
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
      if (sizes[dim] == OnnxSize::axis(axis))
        places_.emplace(axis, Place{name, static_cast<std::int64_t>(dim)});
    }
  }
  body_.message(field::kGraphInput, value_info(name, type, sizes));
}

void OnnxGraph::output(const std::string& name,
                       at::ScalarType type,
                       const std::vector<OnnxSize>& sizes) {
  body_.message(field::kGraphOutput, value_info(name, type, sizes));
}

void OnnxGraph::node_to(const std::vector<std::string>& out,
                        const std::string& op,
                        const std::vector<std::string>& in,
                        const std::vector<OnnxAttribute>& attributes) {
  WireMessage node;
  for (const std::string& name : in)
    node.bytes(field::kNodeInput, name);
  for (const std::string& name : out)
    node.bytes(field::kNodeOutput, name);
  node.bytes(field::kNodeOp, op);
  for (const OnnxAttribute& attribute : attributes)
    node.message(field::kNodeAttribute, attribute.message());
  body_.message(field::kGraphNode, node);
}

std::string OnnxGraph::node(const std::string& op,
                            const std::vector<std::string>& in,
                            const std::vector<OnnxAttribute>& attributes) {
  std::string out = fresh();
  node_to({out}, op, in, attributes);
  return out;
}

std::string OnnxGraph::constant(const at::Tensor& tensor, std::string name) {
  if (name.empty() || constants_.contains(name)) name = fresh();
  constants_.emplace(name, tensor);
  return name;
}

std::string OnnxGraph::number(double value, at::ScalarType type) {
  std::string& name = shared_[fmt::format("{} {}", c10::toString(type), value)];
  if (name.empty()) name = constant(at::full({}, value, type));
  return name;
}

std::string OnnxGraph::real(double value) {
  return number(value, at::kFloat);
}

std::string OnnxGraph::integers(const std::vector<std::int64_t>& values) {
  std::string& name = shared_[fmt::format("{}", values)];
  if (name.empty()) name = constant(at::tensor(values, at::kLong));
  return name;
}

std::string OnnxGraph::integer(std::int64_t value) {
  std::string& name = shared_[fmt::format("integer {}", value)];
  if (name.empty()) name = constant(at::full({}, value, at::kLong));
  return name;
}

std::string OnnxGraph::product(std::size_t axes) {
  std::string& name = products_[axes];
  if (!name.empty()) return name;
  for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
    const std::size_t bit = std::size_t{1} << axis;
    if ((axes & bit) == 0) continue;
    const auto place = places_.find(axis);
    TESSERA_REQUIRE(
        place != places_.end(),
        Unsupported,
        fmt::format("not built: an ONNX file of a model that reads {} of no input", axes_[axis]),
        "convert to a Hugging Face folder");
    const std::int64_t dim = place->second.dim;
    const std::string one =
        axes == bit ? node("Shape", {place->second.input}, {{"start", dim}, {"end", dim + 1}})
                    : product(bit);
    name = name.empty() ? one : node("Mul", {name, one});
  }
  return name;
}

std::string OnnxGraph::size(const OnnxSize& size) {
  if (size.is_fixed()) return integers({size.value()});
  const auto known = sizes_.find(size);
  if (known != sizes_.end()) return known->second;
  std::string sum;
  for (std::size_t m = 1; m < size.terms.size(); ++m) {
    if (size.terms[m] == 0) continue;
    std::string term = product(m);
    if (size.terms[m] != 1) term = node("Mul", {term, integers({size.terms[m]})});
    sum = sum.empty() ? term : node("Add", {sum, term});
  }
  if (size.terms[0] != 0) sum = node("Add", {sum, integers({size.terms[0]})});
  return sizes_[size] = sum;
}

std::string OnnxGraph::sizes(const std::vector<OnnxSize>& sizes) {
  std::vector<std::string> parts;
  std::vector<std::int64_t> fixed;
  for (const OnnxSize& one : sizes) {
    if (one.is_fixed()) fixed.push_back(one.value());
  }
  if (fixed.size() == sizes.size()) return integers(fixed);
  for (const OnnxSize& one : sizes)
    parts.push_back(size(one));
  return node("Concat", parts, {{"axis", std::int64_t{0}}});
}

std::string OnnxGraph::scalar(const OnnxSize& size) {
  if (size.is_fixed()) return integer(size.value());
  return node("Squeeze", {this->size(size), integers({0})});
}

std::string OnnxGraph::cast(const std::string& value, at::ScalarType to) {
  return node("Cast", {value}, {{"to", onnx_type(to)}});
}

std::string OnnxGraph::reshape(const std::string& value, const std::vector<OnnxSize>& sizes) {
  return node("Reshape", {value, this->sizes(sizes)});
}

std::string OnnxGraph::expand(const std::string& value, const std::vector<OnnxSize>& sizes) {
  return node("Expand", {value, this->sizes(sizes)});
}

std::string OnnxGraph::transpose(const std::string& value, const std::vector<std::int64_t>& order) {
  return node("Transpose", {value}, {{"perm", order}});
}

std::string OnnxGraph::unsqueeze(const std::string& value, const std::vector<std::int64_t>& dims) {
  return node("Unsqueeze", {value, integers(dims)});
}

std::string OnnxGraph::slice(const std::string& value,
                             std::int64_t dim,
                             const OnnxSize& begin,
                             const OnnxSize& end,
                             std::int64_t step) {
  return node("Slice", {value, size(begin), size(end), integers({dim}), integers({step})});
}

std::string OnnxGraph::range(const OnnxSize& size) {
  return node("Range", {integer(0), scalar(size), integer(1)});
}

std::uint64_t OnnxGraph::graph_bytes(const std::string& data) const {
  std::uint64_t total =
      body_.str().size() + WireMessage().bytes(field::kGraphName, kOnnxProducer).str().size();
  for_each_constant(
      constants_,
      !data.empty(),
      [&](const std::string& name, const at::Tensor& tensor, std::optional<std::uint64_t> offset) {
        const std::uint64_t size = offset
                                       ? outside(name, tensor, data, *offset).str().size()
                                       : beginning_of(name, tensor).str().size() + tensor.nbytes();
        total += WireMessage().opening(field::kGraphConstant, size).str().size() + size;
      });
  return total;
}

std::uint64_t OnnxGraph::bytes() const {
  const std::uint64_t graph = graph_bytes("");
  return beginning_of_model(graph).str().size() + graph + end_of_model().str().size();
}

std::pair<std::uint64_t, std::uint64_t> OnnxGraph::bytes_beside(const std::string& data) const {
  const std::uint64_t graph = graph_bytes(data);
  return {beginning_of_model(graph).str().size() + graph + end_of_model().str().size(),
          for_each_constant(constants_, true, [](const auto&, const auto&, const auto&) {})};
}

void OnnxGraph::write_model(const std::filesystem::path& path,
                            const std::string& data,
                            const checkpoint::Written& written) const {
  const std::uint64_t total = data.empty() ? bytes() : bytes_beside(data).first;
  TESSERA_REQUIRE(total <= kOnnxMostBytes,
                  Unsupported,
                  fmt::format("not built: an ONNX file of {}: its format, a protocol buffer, holds "
                              "less than 2 GiB",
                              text::bytes(total)),
                  "convert to a Hugging Face folder, or to GGUF");
  const auto output = checkpoint::real_storage().create(path, total);
  const auto put = [&](std::string_view part) {
    output->append(std::as_bytes(std::span(part)));
    written(part.size());
  };
  put(beginning_of_model(graph_bytes(data)).str());
  put(body_.str());
  put(WireMessage().bytes(field::kGraphName, kOnnxProducer).str());
  for_each_constant(
      constants_,
      !data.empty(),
      [&](const std::string& name, const at::Tensor& tensor, std::optional<std::uint64_t> offset) {
        if (offset) {
          const WireMessage whole = outside(name, tensor, data, *offset);
          put(WireMessage().opening(field::kGraphConstant, whole.str().size()).str());
          put(whole.str());
          return;
        }
        const at::Tensor values = tensor.contiguous();
        const WireMessage begin = beginning_of(name, values);
        put(WireMessage()
                .opening(field::kGraphConstant, begin.str().size() + values.nbytes())
                .str());
        put(begin.str());
        put(bytes_of(values));
      });
  put(end_of_model().str());
  output->sync();
}

void OnnxGraph::write(const std::filesystem::path& path, const checkpoint::Written& written) const {
  write_model(path, "", written);
}

void OnnxGraph::write_beside(const std::filesystem::path& path,
                             const std::filesystem::path& data_path,
                             const std::string& data,
                             const checkpoint::Written& written) const {
  const auto output = checkpoint::real_storage().create(data_path, bytes_beside(data).second);
  std::uint64_t end = 0;
  const auto put = [&](std::string_view part) {
    output->append(std::as_bytes(std::span(part)));
    written(part.size());
    end += part.size();
  };
  for_each_constant(constants_,
                    true,
                    [&](const std::string& /*name*/,
                        const at::Tensor& tensor,
                        std::optional<std::uint64_t> offset) {
                      if (!offset) return;
                      put(std::string(*offset - end, '\0'));
                      put(bytes_of(tensor.contiguous()));
                    });
  output->sync();
  write_model(path, data, written);
}

}  // namespace tessera::interop
