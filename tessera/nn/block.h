// SPDX-License-Identifier: Apache-2.0
// The five types that make up a model: Flow (what one block passes to the next), Batch, Params
// (what a block declares), Outcome, Block.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/mesh/shard_spec.h"
#include "tessera/tensor/param.h"

namespace tessera::nn {

class StepContext;

/// The value that one block passes to the next.
struct Flow {
  std::vector<at::Tensor> diff;   ///< differentiable: gradients flow back through these
  std::vector<at::Tensor> fixed;  ///< passed on without gradients: lengths, masks
  mesh::ShardSpec spec;
};

/// A loss term: a sum over the tokens of the batch in fp64, and the index of the objective's
/// denominator that divides it. Any block may emit one; nn::flow_sum() computes sums of values that
/// pass between layers.
struct Term {
  std::string name;
  at::Tensor sum;  ///< 0-d, differentiable (fp64 or fp32)
  int denominator = 0;
  double weight = 1.0;
};

struct Outcome {
  Flow flow;
  std::vector<Term> terms;
  std::map<std::string, at::Tensor> outputs;  ///< "logits", ... if the context requests them
};

/// One micro-batch: named tensors, and the number of each sample within the whole run. The tensors
/// are "input_ids" [B, T] int64; "labels" [B, T] int64, -100 where ignored; "attention_mask" [B,
/// T], 0 at padding, absent if there is no padding; "document_starts" [B, T] int64, for each token
/// the position of the first token of its document, present only if documents are kept apart. Where
/// ranks share the tokens of a sample, T of "input_ids", "labels", "token_type_ids" and
/// "decoder_input_ids" counts this rank's tokens only ("labels": see
/// Objective::reads_whole_samples()).
class Batch {
 public:
  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] const at::Tensor& tensor(std::string_view name) const;  ///< Error{Shape} if absent
  void set(std::string name, at::Tensor value);
  [[nodiscard]] const std::map<std::string, at::Tensor, std::less<>>& tensors() const {
    return tensors_;
  }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(sample_ids.size()); }
  /// The `count` samples from `first` on, as views of this batch's memory.
  [[nodiscard]] Batch samples(std::int64_t first, std::int64_t count) const;
  /// Returns the same samples with their tensors on `device`; shares memory that is already there.
  [[nodiscard]] Batch on(c10::Device device) const;
  std::vector<std::int64_t> sample_ids;

 private:
  std::map<std::string, at::Tensor, std::less<>> tensors_;
};

/// The register in which a block declares its parameters. Names get the block's prefix; the engine
/// attaches tensors later. Throws Error{Shape} for a size below 1 or if the number of axes differs
/// from the number of dims.
class Params {
 public:
  struct Tags {
    bool trainable = true;
    Shape matrix_shape = {};      ///< empty: the shape, without the dim of LogicalAxis::Expert
    bool without_prefix = false;  ///< the name is already global
    mesh::ShardSpec spec = {};
    /// Elements of a split dim that stay together, such as the channels of a head.
    std::int64_t unit = 1;
    std::int64_t inner_unit = 0;  ///< see ParamInfo
    /// Absent: derived from the axes and the matrix shape by role_of().
    std::optional<Role> role = {};
  };
  explicit Params(std::string prefix) : prefix_(std::move(prefix)) {}
  /// Declares a parameter of this block. The pointer is valid as long as the model.
  Param* add(std::string name, Shape global, std::vector<LogicalAxis> logical_axes, Init init);
  Param* add(
      std::string name, Shape global, std::vector<LogicalAxis> logical_axes, Init init, Tags tags);
  /// Declares a parameter that several blocks use. `global_name` gets no prefix; every block must
  /// declare it equally.
  Param* tied(std::string global_name,
              Shape global,
              std::vector<LogicalAxis> logical_axes,
              Init init);
  Param* tied(std::string global_name,
              Shape global,
              std::vector<LogicalAxis> logical_axes,
              Init init,
              Tags tags);
  [[nodiscard]] const std::vector<std::shared_ptr<Param>>& list() const { return list_; }

 private:
  std::string prefix_;
  std::vector<std::shared_ptr<Param>> list_;
};

/// One element of a model. It is written for one device and never looks at ranks.
class Block {
 public:
  virtual ~Block() = default;
  virtual void declare(Params& params) = 0;
  virtual Outcome forward(Flow in, const Batch& batch, StepContext& context) = 0;
  /// True if forward() has collectives over ranks with other samples, as experts on several ranks
  /// do. Which collectives a block makes may depend on what all these ranks have agreed on, but
  /// never on what one of them alone knows. Not for an objective.
  [[nodiscard]] virtual bool exchanges() const { return false; }
  /// Makes the collectives of forward() for a micro-batch without samples on this rank, so that
  /// those of other ranks can go on; called if exchanges(). Appends the leaves with no rows, which
  /// require gradients, to `inputs`. The flow of the outcome depends on them and has no rows
  /// either: its backward makes the collectives of the backward pass. The default throws
  /// Error{Bug}.
  virtual Outcome idle(std::vector<at::Tensor>& inputs, StepContext& context);
  /// True if the block can run on a share of the tokens (parallel.context or parallel.sequence).
  /// This holds if only layers of functional.h that see several tokens at a time (attention,
  /// positions, vocab_loss) read the batch, everything between them works on each token
  /// independently, and vocab_loss() makes every loss term, or terms are functions of
  /// select_tokens(), mean_of_tokens() or values_of_samples(). Other blocks get all tokens, and
  /// layouts that share tokens are refused.
  [[nodiscard]] virtual bool works_by_token() const { return false; }
  /// Names the part of the block that modes 2d, 2.5d and 3d of parallel.tensor cannot split, such
  /// as "norms of query and key heads". Empty if there is none.
  [[nodiscard]] virtual std::string grid_obstacle() const { return {}; }
};

/// The last block. It knows the denominators of the loss before anything runs. In training its
/// outcome contains at least one term.
class Objective : public Block {
 public:
  /// This micro-batch's contribution to each denominator (the number of labels that count); the
  /// number of denominators is the same for every batch. The function is pure. If a denominator
  /// counts tokens, ranks that share a context each count their own, unless reads_whole_samples().
  [[nodiscard]] virtual std::vector<double> denominators(const Batch& batch) const = 0;
  /// True if the batch's labels cover whole samples also where ranks share the tokens of a sample
  /// (parallel.context): each of these ranks then computes the same terms, from
  /// values_of_samples().
  [[nodiscard]] virtual bool reads_whole_samples() const { return false; }
  /// Maximum number of samples of `batch` that the objective processes at a time in training,
  /// forward and backward together, so that tensors over the whole vocabulary exist only for these
  /// samples; 0: all. Return less than all only if the terms are sums over samples and every tensor
  /// of the flow has one row per sample.
  [[nodiscard]] virtual std::int64_t samples_at_once(const Batch& /*batch*/) const { return 0; }
};

/// The parameters of a block in the order of declaration: names and shapes without storage.
using ParamInfos = std::vector<std::shared_ptr<const ParamInfo>>;

struct BlockSpec {
  std::string name;  ///< "h.3": prefix of its parameters and its name in reports
  std::function<std::unique_ptr<Block>()> make;
  /// Adds parameters, such as an adapter (low_rank.h), after the block has declared its own. May be
  /// empty.
  std::function<void(Params&)> adapt = {};
  std::shared_ptr<const ParamInfos> declared = {};  ///< set by declare_all()
};
/// True if the block is one of a numbered sequence: "layers.3", "h.3".
bool is_layer(const BlockSpec& block);
/// A model is a list of blocks; the last one is an Objective.
struct Model {
  std::vector<BlockSpec> blocks;
};

/// Makes the block and declares its parameters, including those of `adapt`. Throws Error{Config} if
/// the spec makes no block.
std::unique_ptr<Block> make_block(const BlockSpec& spec, Params& params);
/// The parameters that a block declares. Unless declare_all() has stored them, a block is made for
/// this call and destroyed.
ParamInfos declared_by(const BlockSpec& spec);
/// Every parameter of a model once (tied parameters too), in the order of its blocks.
ParamInfos parameters_of(const Model& model);
/// Stores what every block declares, making one block at a time; later queries, also on copies of
/// the model, make no blocks. Throws Error{Config} if two blocks or two parameters have the same
/// name, except tied parameters, whose declarations must be equal.
void declare_all(Model& model);

}  // namespace tessera::nn
