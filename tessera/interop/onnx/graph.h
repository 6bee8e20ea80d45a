// SPDX-License-Identifier: Apache-2.0
// A graph of ONNX operators in the making: nodes, constants, and sizes that follow the sizes of the
// inputs. Source: onnx.ai, the schema onnx.proto and the operators of opset 17.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/base/protobuf.h"
#include "tessera/checkpoint/streamed_save.h"

namespace tessera::interop {

inline constexpr std::int64_t kOnnxIrVersion = 8, kOnnxOpset = 17;
/// The program that files name as their producer.
inline constexpr std::string_view kOnnxProducer = "tessera";
/// A protocol buffer has less than 2 GiB.
inline constexpr std::uint64_t kOnnxMostBytes = (std::uint64_t{1} << 31) - 1;
/// A size of the inputs that differs between runs of the model, such as the number of samples, is
/// an axis; a graph has at most this many.
inline constexpr std::size_t kOnnxAxes = 3;

/// A size as a polynomial of the axes: a sum of products of some axes, each with a factor.
struct OnnxSize {
  /// terms[m] is the factor of the product of the axes whose bits m has.
  std::array<std::int64_t, std::size_t{1} << kOnnxAxes> terms = {};

  static OnnxSize fixed(std::int64_t value) { return {{value}}; }
  static OnnxSize axis(std::size_t axis) {
    OnnxSize out;
    out.terms.at(std::size_t{1} << axis) = 1;
    return out;
  }
  [[nodiscard]] bool is_fixed() const { return *this == fixed(terms[0]); }
  [[nodiscard]] std::int64_t value() const { return terms[0]; }  ///< only if is_fixed()
  OnnxSize operator+(const OnnxSize& other) const;
  auto operator<=>(const OnnxSize&) const = default;
};

/// An attribute of a node.
class OnnxAttribute {
 public:
  OnnxAttribute(const char* name, std::int64_t value);
  OnnxAttribute(const char* name, float value);
  OnnxAttribute(const char* name, const std::vector<std::int64_t>& values);
  [[nodiscard]] const WireMessage& message() const { return message_; }

 private:
  WireMessage message_;
};

/// The number that ONNX gives an element type. Throws Error{Unsupported} for one that it lacks.
std::int64_t onnx_type(at::ScalarType type);

/// The first bytes of a file of ours, by which a conversion knows it.
const std::string& onnx_mark();

/// Names of values are the edges of the graph. Values of sizes are int64 with one dimension.
class OnnxGraph {
 public:
  /// `axes`: their names.
  explicit OnnxGraph(std::vector<std::string> axes) : axes_(std::move(axes)) {}

  /// Declares an input. The sizes of the axes are read from the first inputs that have them.
  void input(const std::string& name, at::ScalarType type, const std::vector<OnnxSize>& sizes);
  void output(const std::string& name, at::ScalarType type, const std::vector<OnnxSize>& sizes);
  /// Appends a node. An empty input is one that is left out.
  void node_to(const std::vector<std::string>& out,
               const std::string& op,
               const std::vector<std::string>& in,
               const std::vector<OnnxAttribute>& attributes = {});
  /// Appends a node, makes up the name of its only output, and returns it.
  std::string node(const std::string& op,
                   const std::vector<std::string>& in,
                   const std::vector<OnnxAttribute>& attributes = {});
  /// A constant with the tensor's values. `name`: empty, or taken already, to make one up.
  std::string constant(const at::Tensor& tensor, std::string name = {});
  std::string number(double value, at::ScalarType type);          ///< 0-d
  std::string real(double value);                                 ///< float, 0-d
  std::string integers(const std::vector<std::int64_t>& values);  ///< int64, 1-d
  std::string integer(std::int64_t value);                        ///< int64, 0-d
  /// A size, as a 1-d value of one number. Throws Error{Unsupported} if no input has an axis.
  std::string size(const OnnxSize& size);
  /// Sizes side by side.
  std::string sizes(const std::vector<OnnxSize>& sizes);
  std::string scalar(const OnnxSize& size);  ///< 0-d
  std::string cast(const std::string& value, at::ScalarType to);
  std::string reshape(const std::string& value, const std::vector<OnnxSize>& sizes);
  std::string expand(const std::string& value, const std::vector<OnnxSize>& sizes);
  std::string transpose(const std::string& value, const std::vector<std::int64_t>& order);
  std::string unsqueeze(const std::string& value, const std::vector<std::int64_t>& dims);
  /// Elements [begin, end) of a dimension, every `step`-th.
  std::string slice(const std::string& value,
                    std::int64_t dim,
                    const OnnxSize& begin,
                    const OnnxSize& end,
                    std::int64_t step = 1);
  /// The integers from 0 to the size.
  std::string range(const OnnxSize& size);

  /// Bytes of a file with all constants in it.
  [[nodiscard]] std::uint64_t bytes() const;
  /// Bytes of a file whose large constants lie in a second one called `data`, and of that one.
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> bytes_beside(const std::string& data) const;
  /// Writes the file, which must not exist. Memory: the graph without its constants, and a copy of
  /// one constant if it is not contiguous. Throws Error{Unsupported} beyond kOnnxMostBytes.
  void write(const std::filesystem::path& path, const checkpoint::Written& written) const;
  /// The same in two files (ONNX's external data): constants of some size lie in `data_path`, at
  /// offsets that are multiples of 4096. `data`: the name of that file, next to the first, under
  /// which a program will open it.
  void write_beside(const std::filesystem::path& path,
                    const std::filesystem::path& data_path,
                    const std::string& data,
                    const checkpoint::Written& written) const;
  [[nodiscard]] std::size_t constants() const { return constants_.size(); }

 private:
  std::string fresh() { return "n" + std::to_string(++made_); }
  std::string product(std::size_t axes);
  [[nodiscard]] WireMessage value_info(const std::string& name,
                                       at::ScalarType type,
                                       const std::vector<OnnxSize>& sizes) const;
  /// The bytes of GraphProto. `data`: name of the file of large constants; empty: none.
  [[nodiscard]] std::uint64_t graph_bytes(const std::string& data) const;
  void write_model(const std::filesystem::path& path,
                   const std::string& data,
                   const checkpoint::Written& written) const;

  struct Place {
    std::string input;
    std::int64_t dim = 0;
  };
  std::vector<std::string> axes_;
  WireMessage body_;  ///< fields of GraphProto
  std::map<std::string, at::Tensor> constants_;
  std::map<OnnxSize, std::string> sizes_;
  std::map<std::size_t, std::string> products_;  ///< by the axes' bits
  std::map<std::size_t, Place> places_;          ///< by the axis
  std::map<std::string, std::string> shared_;    ///< small constants, by what they are
  int made_ = 0;
};

}  // namespace tessera::interop
