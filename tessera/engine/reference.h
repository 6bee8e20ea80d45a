// SPDX-License-Identifier: Apache-2.0
// The reference log-probabilities: what the model computes for every sample before the training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "tessera/comm/world.h"
#include "tessera/data/dataset.h"
#include "tessera/parallel/executor.h"

namespace tessera::engine {

/// True if a dataset has a tensor that the model must compute.
bool wants_reference(const data::Datasets& data);

/// The number of samples, and the batch size in which they are read.
struct ReferenceSamples {
  std::int64_t train_batch = 1;
  std::int64_t validation = 0, validation_batch = 1;
};

/// Returns the datasets with the tensors that they need from the model (Dataset::made_by_model()),
/// computed with its current weights, for all training samples and the first validation samples.
/// Batches are consecutive samples; data-parallel rank r computes batches i with i mod n = r, so
/// that no value depends on the layout. Throws Error{Shape} if the objective has no such output.
/// Collective.
std::shared_ptr<const data::Datasets> with_reference(std::shared_ptr<const data::Datasets> data,
                                                     parallel::Executor& executor,
                                                     comm::World& world,
                                                     const ReferenceSamples& samples);

/// The same for the first `samples` samples of one dataset, in batches of `batch_size`.
std::shared_ptr<const data::Dataset> with_reference(std::shared_ptr<const data::Dataset> dataset,
                                                    parallel::Executor& executor,
                                                    comm::World& world,
                                                    std::int64_t samples,
                                                    std::int64_t batch_size);

/// Writes what with_reference() added. Throws Error{Io}.
void keep_reference(const data::Datasets& with_reference, const std::filesystem::path& file);
/// Reads the file, so that a resumed run has its original reference. Returns nullptr if the file is
/// absent, damaged or belongs to other data; the same on every rank. Collective.
std::shared_ptr<const data::Datasets> with_kept_reference(
    std::shared_ptr<const data::Datasets> data,
    comm::World& world,
    const std::filesystem::path& file);

}  // namespace tessera::engine
