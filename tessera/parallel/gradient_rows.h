// SPDX-License-Identifier: Apache-2.0
// Gradients that touch few rows of a table, such as those of an embedding. They are kept as rows
// until a block writes more of the table, and are added to whole tensors last.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"
#include "tessera/parallel/action.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/reduction_options.h"
#include "tessera/parallel/row_exchange.h"
#include "tessera/tensor/row_sum.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {

/// The gradient of one use of a parameter, as far as it consists of rows.
struct RowGradient {
  bool enabled = false;    ///< the use may touch few rows of a table
  bool only_rows = false;  ///< all gradients reduced in this step, on every rank, were rows
  /// If so: the rows of this rank, for the micro-batches that it sums itself.
  std::optional<RowSum> own;
  /// The rows of all ranks, as long as they are smaller than the whole shard.
  std::optional<RowSum> sum;
  /// Resets the state; call before a step.
  void clear() {
    only_rows = false;
    own.reset();
    sum.reset();
  }
};

/// The same gradient as a whole tensor; both functions are called on demand.
struct DenseGradient {
  /// Returns memory for this micro-batch's gradient of the table, [rows, width], which is then
  /// reduced like any other.
  std::function<at::Tensor()> micro;
  /// Returns this rank's shard of the sum, allocated.
  std::function<const at::Tensor&()> sum;
};

/// Used only on the rank's own thread. reduce() is collective.
class RowGradients {
 public:
  /// `group`: the ranks over which the gradients of tables are summed. World and group must outlive
  /// this.
  RowGradients(comm::World& world, const comm::Group& group, const ReductionOptions& options)
      : group_(group),
        options_(options),
        on_host_(device_of(world).is_cpu()),
        exchange_(world, group) {}

  /// True if the gradient of a use (an index among the group's uses) may be kept as rows. If a
  /// table has several uses, only the first may be an embedding whose rows are added to what
  /// another use wrote. The gradient of an only use becomes a whole tensor in the end, so rows pay
  /// off only if they are sent.
  [[nodiscard]] bool supports(const FlatGroup& group, std::size_t use) const;
  /// True if micro-batch `micro` may produce rows: not after a micro-batch of this step that
  /// produced more on some rank. All ranks agree, because they reduce together.
  [[nodiscard]] bool takes_rows(const RowGradient& gradient, int micro) const;
  /// Opens the table's sink for rows, if this rank's gradient of the micro-batch may start as rows
  /// (another rank may have written more). Returns whether it did.
  bool open(const FlatGroup& group,
            const Param& table,
            RowGradient& gradient,
            const DenseGradient& dense,
            int micro) const;
  /// Call after the backward pass of a micro-batch for which takes_rows() is true. Returns whether
  /// this rank's rows are reduced, or kept for the step's last micro-batch; if not, the gradient
  /// has been written as a whole tensor and is still to be reduced as one.
  bool reduce(const FlatGroup& group,
              const Param& table,
              RowGradient& gradient,
              const DenseGradient& dense,
              const BlockRun& run);
  /// Writes gradient.sum, which must exist, to the shard of the sum, and clears it.
  void make_dense(const FlatGroup& group, RowGradient& gradient, const at::Tensor& sum) const;
  /// Adds gradient.sum to a shard that holds another use's sum, and clears it.
  void add_to(const FlatGroup& group, RowGradient& gradient, const at::Tensor& sum) const;

 private:
  [[nodiscard]] std::int64_t offset(const TablePlace& table) const;
  RowExchange::Outcome exchange(const FlatGroup& group,
                                RowGradient& gradient,
                                const DenseGradient& dense,
                                bool first);

  const comm::Group& group_;
  const ReductionOptions& options_;
  bool on_host_;  ///< the host finds the rows; gradients on a device are dense
  RowExchange exchange_;
};

}  // namespace tessera::parallel
