#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "stretto/stretto.h"

// Ranks of the C interface as threads.
namespace stretto {

inline std::string last_error(strettoComm_t comm = nullptr) { return strettoGetLastError(comm); }

#define EXPECT_SUCCESS(call) EXPECT_EQ(call, strettoSuccess) << last_error()
#define ASSERT_SUCCESS(call) ASSERT_EQ(call, strettoSuccess) << last_error()

inline void in_threads(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

// What a body leaves of its communicator is not destroyed here: comm is null then.
inline void on_ranks_of_c(int size, const std::function<void(strettoComm_t& comm, int rank)>& body) {
  strettoUniqueId id;
  ASSERT_SUCCESS(strettoGetUniqueId(&id));
  in_threads(size, [&](int rank) {
    strettoComm_t comm = nullptr;
    ASSERT_SUCCESS(strettoCommInitRank(&comm, size, id, rank));
    body(comm, rank);
    if (comm != nullptr) {
      EXPECT_SUCCESS(strettoCommDestroy(comm));
    }
  });
}

}  // namespace stretto
