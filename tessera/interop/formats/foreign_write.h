// SPDX-License-Identifier: Apache-2.0
// Trainings as other programs read them.
#pragma once

#include <cstdint>
#include <filesystem>

#include "tessera/interop/formats/export.h"
#include "tessera/interop/formats/foreign.h"

namespace tessera::interop {

/// DeepSpeed's universal checkpoint into `folder`, which is there and empty: `latest_universal` and
/// one folder of the step, which deepspeed's load_checkpoint reads with checkpoint.load_universal.
/// The loading program keeps its own loss scale and its own hyperparameters, except the next rate.
/// Error{Config} without moments; Error{Unsupported} naming parameters without them, of which
/// DeepSpeed would not read the weights; Error{Io}.
void write_universal(const std::filesystem::path& folder,
                     const Foreign& training,
                     const checkpoint::Written& written);
/// The bytes that `written` is told of in all.
std::uint64_t universal_bytes(const Foreign& training);

/// Brings the weights into the order in which torch counts the parameters of their module, buffers
/// behind them, and names the parameters: as `training.parameters` lists them, or by the names of
/// a family (module_orders). Error{Unsupported} where neither says the order.
void order_by_module(Foreign& training);
/// model_N.pth at `model` and optimizer_N.pth at `optimizer`: state_dicts of the module and of
/// torch.optim, one group. Parameters are numbered in the order of the weights: all of them, or
/// those that `training.parameters` names. One without state stays so, as one that does not train.
/// Hyperparameters from config.optimizer.params. Error{Unsupported} for an optimizer other than
/// Adam, AdamW, SGD and Adagrad, and for a parameter with a part of its state;
/// for SGD with momentum, but no state of it.
void write_torch_loop(const std::filesystem::path& model,
                      const std::filesystem::path& optimizer,
                      const Foreign& training,
                      const checkpoint::Written& written);
/// What the one group does not say of the training as its configuration does, as a warning: decays
/// and rates that some parameters have of their own. Empty where it says all. Errors of
/// write_torch_loop().
std::string lost_in_torch_loop(const Foreign& training);
/// The bytes that `written` is told of in all.
std::uint64_t torch_loop_bytes(const Foreign& training);

}  // namespace tessera::interop
