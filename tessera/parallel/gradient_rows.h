// SPDX-License-Identifier: Apache-2.0
// Gradients that touch few rows of a table, as those of an embedding do: kept as rows for as long
// as no block of the table writes more, and added to whole tensors last.
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
  bool enabled = false;       ///< the use may touch few rows of a table
  bool only_rows = false;     ///< all that was reduced in this step, on every rank
  std::optional<RowSum> own;  ///< then of this rank, of the micro-batches that it sums itself
  std::optional<RowSum> sum;  ///< and of all ranks, while that is less than the whole shard
  /// Before a step.
  void clear() {
    only_rows = false;
    own.reset();
    sum.reset();
  }
};

/// Where the same gradient lies as a whole tensor; both are called when they are needed.
struct DenseGradient {
  /// Room for this micro-batch's gradient of the table, [rows, width], that is reduced as any.
  std::function<at::Tensor()> micro;
  /// This rank's shard of the sum, allocated.
  std::function<const at::Tensor&()> sum;
};

/// Threads: the rank's own. reduce() is collective.
class RowGradients {
 public:
  /// World and group must outlive this.
  RowGradients(comm::World& world, const comm::Group& group, const ReductionOptions& options)
      : group_(group),
        options_(options),
        on_host_(device_of(world).is_cpu()),
        exchange_(world, group) {}

  /// Whether the gradient of a use (index of a use of the group) may be kept as rows. Of several
  /// uses of a table the first may be an embedding, whose rows are added to what another use wrote.
  /// The only use ends in a whole tensor anyway: its rows are worth it where they are sent.
  [[nodiscard]] bool supports(const FlatGroup& group, std::size_t use) const;
  /// Whether micro-batch `micro` may give rows: not behind one of this step that gave more on some
  /// rank. All ranks agree, because they reduce together.
  [[nodiscard]] bool takes_rows(const RowGradient& gradient, int micro) const;
  /// Opens the sink of the table for rows, if this rank's gradient of the micro-batch begins as
  /// such: another rank may have written more. Returns whether it did.
  bool open(const FlatGroup& group,
            const Param& table,
            RowGradient& gradient,
            const DenseGradient& dense,
            int micro) const;
  /// After the backward pass of a micro-batch that takes_rows(). Returns whether this rank's rows
  /// are reduced, or kept for the step's last micro-batch; else its gradient is where dense ones
  /// are, and is still to be reduced if they are.
  bool reduce(const FlatGroup& group,
              const Param& table,
              RowGradient& gradient,
              const DenseGradient& dense,
              const BlockRun& run);
  /// Writes gradient.sum, which must exist, to the shard of the sum, and forgets it.
  void make_dense(const FlatGroup& group, RowGradient& gradient, const at::Tensor& sum) const;
  /// Adds gradient.sum to a shard that holds another use's sum, and forgets it.
  void add_to(const FlatGroup& group, RowGradient& gradient, const at::Tensor& sum) const;

 private:
  [[nodiscard]] std::int64_t offset(const TablePlace& table) const;
  RowExchange::Outcome exchange(const FlatGroup& group,
                                RowGradient& gradient,
                                const DenseGradient& dense,
                                bool first);

  const comm::Group& group_;
  const ReductionOptions& options_;
  bool on_host_;  ///< rows are found by the host; on a device gradients are dense
  RowExchange exchange_;
};

}  // namespace tessera::parallel
