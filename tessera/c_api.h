/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C interface of the library for a model whose blocks belong to the caller: the module of a
 * Python program. The library owns weights, gradients, optimizer, checkpoints and the exchange
 * between ranks; the caller computes the blocks with its own automatic differentiation.
 *
 * Tensors cross as their storages: both sides use the same libtorch, so that nothing is copied, and
 * the weights of ZeRO stage 3, whose storage has memory only while a block uses them, are the
 * tensors of the caller's module.
 *
 * Every function returns 0, or an exit code of base/error.h; tessera_last_error() then describes
 * the error. A session is used by one thread. Strings that are returned are valid until the next
 * call on the same thread.
 */
#pragma once

#include <stdint.h>

/* NOLINTBEGIN(modernize-use-using, readability-identifier-naming): this is a header of C. */

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever a declaration of this file does. */
#define TESSERA_C_API_VERSION 2

/* A view: a storage (c10::StorageImpl*), an element type (the number of c10::ScalarType), and its
 * sizes, strides and offset in elements. `storage` is NULL for an absent tensor. */
typedef struct tessera_tensor {
  void* storage;
  int32_t type;
  int32_t dims;
  int64_t offset;
  const int64_t* sizes;
  const int64_t* strides;
} tessera_tensor;

/* A micro-batch of this rank. */
typedef struct tessera_micro {
  int32_t set;            /* 0: training, 1: validation */
  int32_t count;          /* samples */
  int64_t step;           /* updates made before */
  int64_t seed;           /* of the training */
  const int64_t* samples; /* indices in the set */
  const int64_t* numbers; /* training: samples of the run before each; else its index */
} tessera_micro;

/* Where a callback puts its results: borrowed c10::TensorImpl*, NULL for an absent one, which the
 * caller keeps alive until the next callback. */
typedef struct tessera_results {
  int32_t count;
  int32_t capacity;
  void** tensors;
} tessera_results;

typedef enum tessera_pass {
  TESSERA_TRAIN = 0,  /* keep what backward() needs, if `graph` */
  TESSERA_EVAL = 1,   /* without gradients */
  TESSERA_GATHER = 2, /* compute nothing: the weights of the block are readable now */
} tessera_pass;

/* A callback returns 0, or another number after tessera_callback_failed(). */
typedef struct tessera_callbacks {
  void* user;
  /* The number by which the mean loss of a micro-batch counts: its labels, or its samples. Called
   * for all micro-batches of a step before the first forward. */
  int (*count)(void* user, const tessera_micro* micro, double* out);
  /* Runs a block on the outputs of the one before it; the first one has none and reads the
   * micro-batch. The results of the last block are its mean loss, 0-d; those of the others are what
   * the next block needs, floating-point tensors only. */
  int (*forward)(void* user,
                 int32_t block,
                 const tessera_micro* micro,
                 int32_t pass,
                 int32_t graph,
                 const tessera_tensor* inputs,
                 int32_t num_inputs,
                 tessera_results* results);
  /* The gradients of the block's outputs; the results are those of its inputs, then those of its
   * trained parameters. */
  int (*backward)(void* user,
                  int32_t block,
                  const tessera_micro* micro,
                  const tessera_tensor* gradients,
                  int32_t num_gradients,
                  tessera_results* results);
  /* A message for the user; level 2 is a warning, 3 an error. Called on any thread. */
  void (*log)(void* user, int32_t level, const char* message);
} tessera_callbacks;

typedef struct tessera_session tessera_session;

int32_t tessera_c_api_version(void);
/* {"exit_code": 2, "what": ..., "fix": ...} of this thread's last error. */
const char* tessera_last_error(void);
/* The error of a callback that is about to return another number than 0. */
void tessera_callback_failed(const char* what);

/*
 * Opens a training in the caller's process, which is a rank of the launcher that started it, or
 * alone. `config`: JSON of docs/config.md or DeepSpeed's; `name` stands for it in messages.
 * `model`: {"blocks": [{"name", "parameters": [{"name", "shape", "role", "tied", "trainable",
 * "value"}]}]}, where "value" counts `values`, c10::TensorImpl* of the first weights, which are
 * read before this returns; those of rank 0 count. `data`: {"size", "validation", "set":
 * ["key=value"]}, samples of both sets, null where there is none, and keys with other values.
 */
int32_t tessera_open(const char* config,
                     const char* name,
                     const char* model,
                     const char* data,
                     void* const* values,
                     int32_t num_values,
                     const tessera_callbacks* callbacks,
                     tessera_session** out);
/* {"rank", "ranks", "step", "samples", "max_steps", "micro_batch", "run_dir", "notes", "config",
 * "zero_stage", ...} */
int32_t tessera_describe(tessera_session* session, const char** json);
/* The working weights of a parameter of a block, in the order of its declaration. */
int32_t tessera_parameter(tessera_session* session,
                          int32_t block,
                          int32_t parameter,
                          tessera_tensor* out);
/* Makes one update, and the evaluations and checkpoints that are due after it. {"step", "loss",
 * "lr", "grad_norm", "skipped", "done", "stop_signal", "evaluations" (since tessera_open()),
 * "saved_step",
 * ...} */
int32_t tessera_step(tessera_session* session, const char** json);
/* Evaluates on the validation set. {"loss": ...} */
int32_t tessera_evaluate(tessera_session* session, const char** json);
/* Calls forward() with TESSERA_GATHER for every block, on all ranks. */
int32_t tessera_gather(tessera_session* session);
/* Writes a checkpoint under `folder`. {"folder": ...} */
int32_t tessera_save(tessera_session* session, const char* folder, const char** json);
/* Continues from a checkpoint of any layout, or the newest one in a folder. */
int32_t tessera_load(tessera_session* session, const char* folder);
/* Gives every rank the bytes of all ranks, one after the other in `all`, and `sizes`, one number
 * for each rank, which the caller has allocated. */
int32_t tessera_all_gather(
    tessera_session* session, const void* data, int64_t size, const void** all, int64_t* sizes);
/* Ends the loop: the last checkpoint and status of a run folder. `exit_code`: of the training. */
int32_t tessera_finish(tessera_session* session, int32_t* exit_code);
/* Frees the session; the weights of the caller's module are invalid after this. */
void tessera_close(tessera_session* session);
/* Ends this process's part of a launcher's job; `failure`: why it ends early, or NULL. Returns the
 * exit code for the process. Call it once, after the last session. */
int32_t tessera_end(int32_t exit_code, const char* failure);
/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#ifdef __cplusplus
}
#endif
