// SPDX-License-Identifier: Apache-2.0
// How the parameters of a model correspond to the tensors of another program's files: a parameter
// is composed of their tensors by concatenation, slices, transposition, permutation and views.
// Pure data: nothing here opens a file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tensor/param.h"

namespace tessera::models {

/// A one-to-one correspondence between elements of two row-major tensors, the destination and the
/// source: index (i, j, ...) is element `to + i * dims[0].to + ...` of the destination and element
/// `from + i * dims[0].from + ...` of the source. Dims are sorted by the stride in the destination,
/// the largest first; neighbours that can be merged are merged.
struct StridedCopy {
  struct Dim {
    std::int64_t size = 1, to = 1, from = 1;  ///< strides in elements
    bool operator==(const Dim&) const = default;
  };
  std::int64_t to = 0, from = 0;
  std::vector<Dim> dims;

  [[nodiscard]] std::int64_t numel() const;
  /// Whether elements [begin, end) of the destination may contain some of the copy's.
  [[nodiscard]] bool meets(std::int64_t begin, std::int64_t end) const;
  /// Whether consecutive elements of the destination are consecutive in the source, row by row.
  [[nodiscard]] bool in_order() const;
  [[nodiscard]] StridedCopy reversed() const;
};

/// Reads elements [begin, end) of the source as fp32.
using ReadFloats = std::function<void(std::int64_t begin, std::int64_t end, float* out)>;

/// Fills what the copy has of elements [begin, end) of the destination; out[0] is element `begin`.
/// Memory: 16 lines of a transposed source. Cost: a transposed source is read line by line, and
/// only as much of each line as the range needs.
void copy_range(const StridedCopy& copy,
                std::int64_t begin,
                std::int64_t end,
                const ReadFloats& read,
                float* out);

/// An array whose elements come from tensors of another layout.
class Composition {
 public:
  /// The contribution of one tensor: a box of the array, filled from a strided view of the tensor.
  struct Part {
    std::string tensor;
    Shape tensor_shape;
    Shape begin, sizes;  ///< the box
    std::int64_t offset = 0;
    Shape strides;  ///< in the tensor, one for each dim of the array
  };

  /// The tensor as it is.
  static Composition of(std::string name, Shape shape);
  /// The arrays one after the other along `dim`; their other dims are equal.
  static Composition concat(const std::vector<Composition>& arrays, std::size_t dim);
  /// Indices [begin, end) of `dim`.
  [[nodiscard]] Composition slice(std::size_t dim, std::int64_t begin, std::int64_t end) const;
  /// Dim d of the result is dim dims[d] of this array.
  [[nodiscard]] Composition permuted(const std::vector<std::size_t>& dims) const;
  /// The matrix with its two dims exchanged.
  [[nodiscard]] Composition transposed() const { return permuted({1, 0}); }
  /// The same elements in row-major order under another shape.
  [[nodiscard]] Composition viewed(const Shape& shape) const;

  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }
  /// From the tensor of `part` into the row-major array.
  [[nodiscard]] StridedCopy copy_of(const Part& part) const;

 private:
  [[nodiscard]] Composition merged(std::size_t dim) const;
  [[nodiscard]] Composition split(std::size_t dim, std::int64_t inner) const;

  Shape shape_;
  std::vector<Part> parts_;
};

/// A second name under which files may store a tensor of a model that has one parameter for both.
struct Tie {
  std::string alias, of;  ///< "lm_head.weight", "transformer.wte.weight"
  /// A tensor of the model without which there is no alias: "cls.predictions.bias". Empty: none.
  std::string with = {};
};

/// How a family's parameters are stored under the names of another program.
struct WeightMap {
  /// The composition of a parameter; its shape is info.shape.
  Composition (*compose)(const ParamInfo& info) = nullptr;
  /// Prefix that files of the bare model omit: "transformer.".
  std::string base;
  /// A tie holds for a model without a parameter that is composed of the alias.
  std::vector<Tie> ties;
  /// Whether files may hold a tensor of this name that is no parameter: a mask, a table of angles.
  bool (*is_buffer)(std::string_view name) = nullptr;
  /// A tensor that every file of the family has, with the base: it identifies a state_dict.
  std::string anchor;
  /// The name under which the map knows a tensor that other versions store under `name`; absent:
  /// there is one version.
  std::string (*known_as)(std::string name) = nullptr;
  /// Whether files may hold this tensor though the model has no parameter for it: a head of another
  /// task.
  bool (*may_be_unused)(std::string_view name) = nullptr;

  [[nodiscard]] std::string without_base(const std::string& name) const;
};

using Parameters = std::vector<std::shared_ptr<const ParamInfo>>;

/// The ties that hold for a model of these parameters.
std::vector<Tie> ties_of(const WeightMap& map, const Parameters& parameters);

/// A tensor of the other layout, made of parameters of ours.
struct TheirTensor {
  struct Part {
    std::shared_ptr<const ParamInfo> info;
    StridedCopy copy;  ///< from the parameter into the tensor
  };
  std::string name;
  Shape shape;
  std::vector<Part> parts;
  std::vector<std::string> aliases;
};
/// The inverse of the map, in the order of the parameters. A tensor is listed if the parameters
/// cover all of it.
std::vector<TheirTensor> their_tensors(const WeightMap& map, const Parameters& parameters);

}  // namespace tessera::models
