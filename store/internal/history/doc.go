// Package history has what the backends must agree on about closed evictions:
// their two classes, their order, the cursor between pages and the filters.
// It must not know how a backend lays them out.
package history
