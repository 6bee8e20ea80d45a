// SPDX-License-Identifier: Apache-2.0
// Tasks that train with noise on embeddings.
#pragma once

namespace tessera::tasks {

/// A task may be one too.
class EmbeddingNoise {
 public:
  virtual ~EmbeddingNoise() = default;
  /// alpha of the noise +-alpha / sqrt(tokens * C) that training adds to what is looked up in token
  /// tables (nn/embedding_noise.h); 0: none.
  [[nodiscard]] virtual double noise_alpha() const = 0;
};

}  // namespace tessera::tasks
