// SPDX-License-Identifier: Apache-2.0
// A parameter: its global name and shape, its working tensor, and the destination of its gradient.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/mesh/shard_spec.h"

namespace tessera {

class RowSum;

using Shape = std::vector<std::int64_t>;

/// Initialization of a parameter; a function of (seed, name, global index), so every layout starts
/// from the same bits.
struct Init {
  enum class Kind : std::uint8_t { Zeros, Ones, Normal, Uniform, Truncated } kind = Kind::Zeros;
  float cutoff = 0.0F;  ///< Truncated: no value is further than cutoff * std from 0
  double std = 0.0;     ///< for Uniform: the bound, values are in [-std, std)
  /// Normal: the standard deviation for index 0 of the first dim, such as the queries of a fused
  /// projection; normally the same as std.
  double first_std = 0.0;
  static Init zeros() { return {.kind = Kind::Zeros}; }
  static Init ones() { return {.kind = Kind::Ones}; }
  static Init normal(double std) { return normal(std, std); }
  /// A normal distribution of deviation `std`, of which only values up to cutoff * std are drawn,
  /// so that their deviation is smaller: 0.88 std for a cutoff of 2.
  static Init truncated(double std, double cutoff) {
    return {.kind = Kind::Truncated,
            .cutoff = static_cast<float>(cutoff),
            .std = std,
            .first_std = std};
  }
  static Init uniform(double bound) {
    return {.kind = Kind::Uniform, .std = bound, .first_std = bound};
  }
  static Init normal(double first_std, double others_std) {
    return {.kind = Kind::Normal, .std = others_std, .first_std = first_std};
  }
};

/// The meaning of a dim of a parameter, by which tensor parallelism decides which dims to split.
/// GroupedHeads: queries that share heads of keys and values (KvHeads), group after group.
/// Expert: the first dim of a stacked parameter, which counts the matrices of experts.
enum class LogicalAxis : std::uint8_t {
  None,
  Embed,
  Heads,
  KvHeads,
  GroupedHeads,
  Ffn,
  Vocab,
  Expert
};

/// The role of a parameter in its model, which optimizer rules and layouts use.
enum class Role : std::uint8_t {
  Matrix,
  Vector,         ///< a bias, or the weights of a norm: its matrix shape has one dim
  TokenTable,     ///< [tokens, channels]: an embedding, the output head, or both when tied
  PositionTable,  ///< [positions, channels], looked up by the position of a token
  OutputHead      ///< another matrix with a dim over the vocabulary
};

struct ParamInfo {
  std::string name;  ///< "h.0.attn.c_attn.weight": the key in checkpoints, the same in every layout
  Shape shape;       ///< global
  std::vector<LogicalAxis> axes;  ///< of each dim
  /// The shape for weight decay ("two or more dimensions"), Muon and export; of a stacked
  /// parameter, that of one of its matrices.
  Shape matrix_shape;
  Role role = Role::Matrix;
  Init init;
  bool trainable = true;
  bool tied = false;      ///< several blocks use it; it then has its own flat buffer
  std::int64_t unit = 1;  ///< elements of a sharded dim that stay together: the channels of a head
  /// GroupedHeads: the channels of one head, where ranks share a group; 0: unit.
  std::int64_t inner_unit = 0;
  mesh::ShardSpec spec;
  mesh::Box box = {};              ///< the part of it that this rank holds; empty: all of it
  std::int64_t room = 0;           ///< elements of the largest box that any rank holds; 0: all
  std::int64_t room_matrices = 0;  ///< of a stacked parameter: matrices of that box; 0: all
  [[nodiscard]] std::int64_t numel() const;  ///< global
  /// True if dim 0 counts matrices (of experts), each of which is a parameter of its own for the
  /// optimizer and for the norm of the gradient.
  [[nodiscard]] bool stacked() const {
    return !axes.empty() && axes.front() == LogicalAxis::Expert;
  }
  [[nodiscard]] std::int64_t num_matrices() const { return stacked() ? shape.front() : 1; }
  [[nodiscard]] bool cut() const { return !spec.splits.empty(); }
  /// True if a dim is split over one of `over`.
  [[nodiscard]] bool cut_over(mesh::AxisSet over) const { return !(spec.axes() & over).empty(); }
  /// The axes over which each matrix is split: all of the spec, except those that divide the
  /// matrices of a stacked parameter among ranks.
  [[nodiscard]] mesh::AxisSet axes_of_matrix() const {
    return stacked() ? spec.axes() - spec.axes(0) : spec.axes();
  }
  [[nodiscard]] mesh::Box held() const;
  [[nodiscard]] Shape local_shape() const;
  [[nodiscard]] std::int64_t local_numel() const;
  /// The same on every rank that holds a part, so that flat buffers have equal sizes.
  [[nodiscard]] std::int64_t room_numel() const { return room > 0 ? room : numel(); }
};
/// Returns whether weight decay applies by the rule "two or more dimensions" (of the matrix shape).
bool decays(const ParamInfo& info);
/// The role of a parameter whose block declares none, by its axes and its matrix shape.
Role role_of(const Shape& shape, const std::vector<LogicalAxis>& axes, const Shape& matrix_shape);

/// The destination of the gradient of one micro-batch: fp32, in the shape of the part of the
/// parameter that this rank holds. Parameters of experts get a gradient from the micro-batch of
/// every rank that sends them tokens, and each is a slice of its own; all others have one slice.
class GradSink {
 public:
  /// The number of slices: ranks whose micro-batches pass through the parameter, in their order.
  [[nodiscard]] int slices() const { return static_cast<int>(out_.size()); }
  /// Returns the destination of this micro-batch. Write all of it, or add to it if accumulate();
  /// then call written().
  [[nodiscard]] const at::Tensor& out(int slice = 0);
  [[nodiscard]] bool accumulate(int slice = 0) const { return written_[at(slice)]; }
  void written(int slice = 0) { written_[at(slice)] = true; }
  /// If the gradient has few non-zero rows in the first dim, add to these rows here instead of
  /// writing out(), then call written(). nullptr if there is only out().
  [[nodiscard]] RowSum* rows() const { return rows_; }
  [[nodiscard]] bool was_written() const { return written_.front(); }
  /// Writes or adds `grad` (any float dtype, the parameter's shape) according to accumulate(), and
  /// marks it as written. Only if there is one slice.
  void write(const at::Tensor& grad);

  /// Called by the owner of the buffer before a micro-batch. `holds`: `out` already contains a sum,
  /// to which this micro-batch is added.
  void open(at::Tensor out, bool holds = false);
  /// The same with one tensor for each slice, at least one; `holds` is that of all of them.
  void open(std::vector<at::Tensor> slices, bool holds);
  /// Like open(), with a sparse sum of rows. If out() is requested all the same, it becomes the
  /// result of `make_dense`, which includes the rows so far, and rows() becomes nullptr.
  void open_rows(RowSum& rows, std::function<at::Tensor()> make_dense, bool holds = false);
  /// Zeroes the slices that were not written; called by the owner after a micro-batch.
  void close();
  /// Drops out() and rows(), whose memory belongs to their owner again.
  void release();

 private:
  static std::size_t at(int slice) { return static_cast<std::size_t>(slice); }

  std::vector<at::Tensor> out_ = std::vector<at::Tensor>(1);  ///< by slice
  std::vector<bool> written_ = {false};                       ///< by slice
  RowSum* rows_ = nullptr;
  std::function<at::Tensor()> make_dense_;
};

/// Information about a parameter for the layers that use it, in addition to its values;
/// nn::LayerForm derives from it.
struct ParamExtension {
  virtual ~ParamExtension() = default;
};

/// One use of a parameter by one block. Tied parameters have one Param per use; they share info and
/// tensor, and each has its own gradient sink.
class Param {
 public:
  explicit Param(std::shared_ptr<const ParamInfo> info) : info_(std::move(info)) {}
  [[nodiscard]] const ParamInfo& info() const { return *info_; }
  [[nodiscard]] const std::shared_ptr<const ParamInfo>& shared_info() const { return info_; }
  /// The working tensor: a leaf that requires grad if trainable, in the working dtype, a view into
  /// the flat buffer.
  [[nodiscard]] const at::Tensor& tensor() const { return tensor_; }
  void attach(at::Tensor tensor) { tensor_ = std::move(tensor); }
  /// Attaches int8 weights instead, for models that are only read, with an fp32 scale for each row
  /// of the matrix whose columns are the last dim.
  void attach_int8(at::Tensor tensor, at::Tensor scales) {
    tensor_ = std::move(tensor);
    scales_ = std::move(scales);
  }
  /// Undefined unless tensor() is int8.
  [[nodiscard]] const at::Tensor& scales() const { return scales_; }
  /// nullptr: layers use the parameter directly.
  [[nodiscard]] const ParamExtension* extension() const { return extension_.get(); }
  void extend(std::shared_ptr<const ParamExtension> extension) {
    extension_ = std::move(extension);
  }
  /// Makes the parameter not trainable. Call it before the parameter is laid out.
  void freeze() { set_trainable(false); }
  /// Replaces the info by one that differs in `trainable`; holders of the info must be told.
  void set_trainable(bool trainable) {
    ParamInfo changed = *info_;
    changed.trainable = trainable;
    info_ = std::make_shared<const ParamInfo>(std::move(changed));
    if (tensor_.defined()) tensor_.set_requires_grad(trainable);
  }
  /// Sets the box of the parameter that this rank holds. Call it before the parameter is laid out.
  /// `room`, `room_matrices`: see ParamInfo.
  void place(mesh::ShardSpec spec,
             mesh::Box box,
             std::int64_t room,
             std::int64_t room_matrices = 0) {
    ParamInfo placed = *info_;
    placed.spec = std::move(spec);
    placed.box = std::move(box);
    placed.room = room;
    placed.room_matrices = room_matrices;
    info_ = std::make_shared<const ParamInfo>(std::move(placed));
  }
  /// Mutable because autograd functions only see the parameter as const.
  [[nodiscard]] GradSink& grad() const { return grad_; }

 private:
  std::shared_ptr<const ParamInfo> info_;
  at::Tensor tensor_, scales_;
  std::shared_ptr<const ParamExtension> extension_;
  mutable GradSink grad_;
};

}  // namespace tessera
