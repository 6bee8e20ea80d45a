// SPDX-License-Identifier: Apache-2.0
// The correspondence of a model's parameters to the tensors of another program's files: a parameter
// is composed of these tensors by concatenation, slicing, transposition, permutation and reshaping.
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
/// `from + i * dims[0].from + ...` of the source. Dims are sorted by descending stride in the
/// destination; adjacent dims that can be merged are merged.
struct StridedCopy {
  struct Dim {
    std::int64_t size = 1, to = 1, from = 1;  ///< number of elements, strides in elements
    bool operator==(const Dim&) const = default;
  };
  std::int64_t to = 0, from = 0;
  std::vector<Dim> dims;

  [[nodiscard]] std::int64_t numel() const;
  /// True if elements [begin, end) of the destination may overlap the copy.
  [[nodiscard]] bool meets(std::int64_t begin, std::int64_t end) const;
  /// True if consecutive elements of the destination are consecutive in the source, row by row.
  [[nodiscard]] bool in_order() const;
  [[nodiscard]] StridedCopy reversed() const;
};

/// Reads elements [begin, end) of the source as fp32.
using ReadFloats = std::function<void(std::int64_t begin, std::int64_t end, float* out)>;

/// Fills the copy's part of elements [begin, end) of the destination; out[0] is element `begin`.
/// Memory: 16 lines of a transposed source. Cost: a transposed source is read line by line, and of
/// each line only what the range needs.
void copy_range(const StridedCopy& copy,
                std::int64_t begin,
                std::int64_t end,
                const ReadFloats& read,
                float* out);

/// An array whose elements are taken from tensors with another layout.
class Composition {
 public:
  /// The contribution of one tensor: a box of the array, filled from a strided view of the tensor.
  struct Part {
    std::string tensor;
    Shape tensor_shape;
    Shape begin, sizes;  ///< the box
    std::int64_t offset = 0;
    Shape strides;  ///< strides in the tensor, one per dim of the array
  };

  /// The tensor unchanged.
  static Composition of(std::string name, Shape shape);
  /// Concatenates the arrays along `dim`; their other dims must be equal.
  static Composition concat(const std::vector<Composition>& arrays, std::size_t dim);
  /// Selects indices [begin, end) of `dim`.
  [[nodiscard]] Composition slice(std::size_t dim, std::int64_t begin, std::int64_t end) const;
  /// Dim d of the result is dim dims[d] of this array.
  [[nodiscard]] Composition permuted(const std::vector<std::size_t>& dims) const;
  /// Transposes a matrix.
  [[nodiscard]] Composition transposed() const { return permuted({1, 0}); }
  /// Reshapes to `shape` in row-major order.
  [[nodiscard]] Composition viewed(const Shape& shape) const;

  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }
  /// The copy from the tensor of `part` to the row-major array.
  [[nodiscard]] StridedCopy copy_of(const Part& part) const;

 private:
  [[nodiscard]] Composition merged(std::size_t dim) const;
  [[nodiscard]] Composition split(std::size_t dim, std::int64_t inner) const;

  Shape shape_;
  std::vector<Part> parts_;
};

/// A second name under which files may store a tensor, for a model with one parameter for both. A
/// file may have either name or, with equal values, both.
struct Tie {
  std::string alias, of;  ///< "lm_head.weight", "transformer.wte.weight"
  /// The alias exists only if the model has this tensor: "cls.predictions.bias". Empty: no
  /// condition.
  std::string with = {};
  /// The alias is only for files that lack the tensor. In others it may differ and is not used.
  bool unused = false;
};

/// The storage of a family's parameters under another program's names.
struct WeightMap {
  /// Returns the composition of a parameter; its shape is info.shape.
  Composition (*compose)(const ParamInfo& info) = nullptr;
  /// Prefix that files of the bare model omit: "transformer.".
  std::string base;
  /// A tie applies to a model in which no parameter is composed of the alias.
  std::vector<Tie> ties;
  /// Returns whether files may contain this tensor although it is not a parameter: a mask, a table
  /// of angles.
  bool (*is_buffer)(std::string_view name) = nullptr;
  /// A tensor, with the base, that every file of the family has; it identifies a state_dict.
  std::string anchor;
  /// Returns the map's name of a tensor that other versions store under `name`; nullptr: there is
  /// only one version.
  std::string (*known_as)(std::string name) = nullptr;
  /// Returns whether files may contain this tensor although the model has no parameter for it: a
  /// head of another task.
  bool (*may_be_unused)(std::string_view name) = nullptr;

  [[nodiscard]] std::string without_base(const std::string& name) const;
};

using Parameters = std::vector<std::shared_ptr<const ParamInfo>>;

/// The ties that apply to a model with these parameters.
std::vector<Tie> ties_of(const WeightMap& map, const Parameters& parameters);

/// A tensor in the other program's layout, composed of tessera's parameters.
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
