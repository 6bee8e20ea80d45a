// SPDX-License-Identifier: Apache-2.0
// Tasks that train with noise on embeddings.
#pragma once

namespace tessera::tasks {

/// Interface of such tasks.
class EmbeddingNoise {
 public:
  virtual ~EmbeddingNoise() = default;
  /// Returns alpha of the noise +-alpha / sqrt(tokens * C) that training adds to looked-up
  /// embeddings (nn/embedding_noise.h); 0: none.
  [[nodiscard]] virtual double noise_alpha() const = 0;
};

}  // namespace tessera::tasks
