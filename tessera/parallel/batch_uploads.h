// SPDX-License-Identifier: Apache-2.0
// Copies micro-batches to a device while it computes the micro-batch before.
#pragma once

#include <memory>

#include "tessera/nn/block.h"

namespace tessera::parallel {

/// The uploads of a rank. A batch is staged in pinned memory and copied on a stream of its own, so
/// that neither the host nor the computation waits until the batch is needed. For the CPU nothing
/// is copied, and for the meta device there are no streams. Memory: that of the batches that are
/// posted and not taken. Used only on the rank's own thread.
class BatchUploads {
 public:
  explicit BatchUploads(c10::Device device);
  ~BatchUploads();
  BatchUploads(const BatchUploads&) = delete;
  BatchUploads& operator=(const BatchUploads&) = delete;

  /// Starts to copy micro-batch `micro`, which is on the host; nothing if that was done before.
  void post(int micro, const nn::Batch& batch);
  /// Returns micro-batch `micro` on the device, and copies it if it was not posted. The current
  /// stream waits for the copy; the host does not.
  nn::Batch take(int micro, const nn::Batch& batch);
  /// Forgets what was posted and not taken, after a step that ended with an error.
  void clear();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::parallel
