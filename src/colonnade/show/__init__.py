"""What people see: tables, plots, pages."""
