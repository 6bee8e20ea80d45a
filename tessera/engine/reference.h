// SPDX-License-Identifier: Apache-2.0
// What the model, as it is before training, makes of every sample: the log-probabilities of a
// reference.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "tessera/comm/world.h"
#include "tessera/data/dataset.h"
#include "tessera/parallel/executor.h"

namespace tessera::engine {

/// Whether a dataset has a tensor that the model makes.
bool wants_reference(const data::Datasets& data);

/// How many samples are needed, and in batches of what size they are read.
struct ReferenceSamples {
  std::int64_t train_batch = 1;
  std::int64_t validation = 0, validation_batch = 1;
};

/// The datasets with the tensors that they want of the model (Dataset::made_by_model()), made by
/// its weights of now: those of all training samples and of the first validation samples. Batches
/// are consecutive samples, of which data-parallel rank r computes number i where i mod n is r, so
/// that no value depends on the layout. Error{Shape} where the objective has no such output.
/// Collective.
std::shared_ptr<const data::Datasets> with_reference(std::shared_ptr<const data::Datasets> data,
                                                     parallel::Executor& executor,
                                                     comm::World& world,
                                                     const ReferenceSamples& samples);

/// Writes what with_reference() added. Error{Io}.
void keep_reference(const data::Datasets& with_reference, const std::filesystem::path& file);
/// Reads it again, so that a run that goes on has the reference that it began with. nullptr where
/// the file is absent, damaged or of other data; the same on every rank. Collective.
std::shared_ptr<const data::Datasets> with_kept_reference(
    std::shared_ptr<const data::Datasets> data,
    comm::World& world,
    const std::filesystem::path& file);

}  // namespace tessera::engine
