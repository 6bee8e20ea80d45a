// SPDX-License-Identifier: Apache-2.0
// The functions of NCCL that the transport calls, as a table: of the library, or of a stand-in.
#pragma once

#include <cstddef>
#include <string>

namespace tessera::transports {

/// ncclUniqueId.
struct NcclId {
  char bytes[128] = {};
};

/// With the signatures of nccl.h (NCCL 2.28): results are ncclResult_t, types ncclDataType_t,
/// communicators ncclComm_t and streams cudaStream_t.
struct NcclApi {
  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(NcclId* id) = nullptr;
  int (*comm_init_rank)(void** comm, int ranks, NcclId id, int rank) = nullptr;
  int (*comm_abort)(void* comm) = nullptr;
  int (*comm_destroy)(void* comm) = nullptr;
  int (*comm_get_async_error)(void* comm, int* result) = nullptr;
  int (*all_gather)(
      const void* in, void* out, std::size_t count, int type, void* comm, void* stream) = nullptr;
  int (*broadcast)(const void* in,
                   void* out,
                   std::size_t count,
                   int type,
                   int root,
                   void* comm,
                   void* stream) = nullptr;
  int (*send)(const void* data, std::size_t count, int type, int peer, void* comm, void* stream) =
      nullptr;
  int (*recv)(void* data, std::size_t count, int type, int peer, void* comm, void* stream) =
      nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  const char* (*error_string)(int result) = nullptr;
};

/// Fills the table from libnccl.so.2, which stays loaded. Returns why it cannot; an empty string if
/// it can.
std::string load_nccl(NcclApi& api);

}  // namespace tessera::transports
