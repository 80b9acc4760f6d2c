// One message from one rank to another: alpha + n beta.
#include "collectives/plans/generators.hpp"

namespace stretto::plans {

Plan direct_send(const PlanRequest& request) {
  PlanBuilder plan(request);
  plan.send(request.root, input(0, request.count));
  return plan.finish();
}

Plan direct_recv(const PlanRequest& request) {
  PlanBuilder plan(request);
  plan.recv(request.root, output(0, request.count));
  return plan.finish();
}

}  // namespace stretto::plans
